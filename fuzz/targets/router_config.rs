//! Any bytes as a router's configuration, and as the files that are imported.
#![no_main]

use std::io;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use octet_config::import::{Origin, import};
use octet_config::{Config, Source};

/// Every variable is set, and no file is there.
struct Env;

impl Source for Env {
    fn variable(&self, name: &str) -> Option<String> {
        Some(name.to_string())
    }

    fn read(&self, _: &Path, _: u64) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse("octet.yaml", text, &Env) {
        Ok(config) => drop(config.tree()),
        Err(e) => assert!(e.to_string().len() < 60_000, "errors quote little"),
    }
    for origin in [Origin::LiteLlm, Origin::LlamaSwap, Origin::Modelfile] {
        let _ = import(origin, "file", text, "name", &Env);
    }
});
