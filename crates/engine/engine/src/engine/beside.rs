//! The tokenizer is built while the weights are loaded: it needs only the metadata, and with a large vocabulary it takes most of a second.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::{Builder, scope};

use octet_weights::Metadata;

use crate::Error;
use crate::models::loader::GoesOn;
use crate::tokenizer::Tokenizer;

/// Builds the tokenizer of a file on a thread of its own while `load` runs, and ends with both.
///
/// # Errors
/// If the tokenizer cannot be built: then `load` is told to end, and what it says does not matter. Else the error of `load`.
pub fn tokenizer<T>(
    metadata: &Metadata,
    load: impl FnOnce(GoesOn<'_>) -> Result<T, Error>,
) -> Result<(Tokenizer, T), Error> {
    let failed = AtomicBool::new(false);
    let build = || {
        let built = Tokenizer::from_metadata(metadata);
        failed.store(built.is_err(), Release);
        built
    };
    scope(|threads| {
        let thread = Builder::new().name("octet-tokenizer".into()).spawn_scoped(threads, build);
        let Ok(thread) = thread else {
            // The system has no thread left: one after the other.
            let tokenizer = build()?;
            return Ok((tokenizer, load(&|| true)?));
        };
        let loaded = load(&|| !failed.load(Acquire));
        let tokenizer = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((tokenizer, loaded?))
    })
}
