//! Finds errors of a configuration that a server would report at its start, without starting anything.

use octet_config::{Config, Target, printable};

use super::auth::Current;
use super::target::endpoint;
use crate::ops::Keys;

/// Creates what a server creates from a configuration, except models in this process and servers that are started on demand: those need
/// files, memory and a runtime.
///
/// # Errors
/// The first error, with its place in the file.
pub fn check(config: &Config) -> Result<(), String> {
    for d in &config.deployments {
        if let Target::Remote(remote) = &d.target {
            let made = endpoint(remote.clone(), d.params.clone(), d.info.max_output_tokens);
            made.map_err(|e| format!("{}: '{}': {e}", d.span, printable(d.group.as_str())))?;
        }
    }
    Current::new(config, &Keys::default(), None).map(drop)
}
