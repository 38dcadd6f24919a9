//! What a server would refuse of a configuration at its start, found without starting anything. Called by `octet config check`.

use octet_config::{Config, Target, printable};

use super::auth::Current;
use super::target::endpoint;
use crate::ops::Keys;

/// Makes of a configuration what a server makes of it, apart from models in this process and servers that are started on demand: those
/// take files, memory and a runtime.
///
/// # Errors
/// Where something cannot be made, with its place in the file.
pub fn check(config: &Config) -> Result<(), String> {
    for d in &config.deployments {
        if let Target::Remote(remote) = &d.target {
            let made = endpoint(remote.clone(), d.params.clone(), d.info.max_output_tokens);
            made.map_err(|e| format!("{}: '{}': {e}", d.span, printable(d.group.as_str())))?;
        }
    }
    Current::new(config, &Keys::default(), None).map(drop)
}
