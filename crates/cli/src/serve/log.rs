//! What the server says while it runs: lines to standard error. Started by `serve`.

use std::io::IsTerminal;

use octet_config::printable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

use crate::Usage;
use crate::config::Settings;
use crate::stderr::Log;

/// Begins to write.
///
/// # Errors
/// A filter that can not be read.
pub fn start(verbose: bool, settings: &Settings) -> anyhow::Result<()> {
    let filter = match &settings.log {
        Some(filter) => EnvFilter::try_new(filter).map_err(|e| Usage(format!("RUST_LOG: {e}")))?,
        None => EnvFilter::new(if verbose { "info,octet_serve=debug,octet_engine=debug" } else { "info" }),
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    let subscriber = subscriber.log_internal_errors(false).with_target(false);
    let subscriber = subscriber.with_ansi(std::io::stderr().is_terminal());
    // The subscriber's own way looks at each character by itself, which is more work than to route a request.
    let fields = debug_fn(|out, field, value| {
        if field.name() != "message" {
            write!(out, "{field}=")?;
        }
        let text = format!("{value:?}");
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                out.write_char('\n')?;
            }
            out.write_str(&printable(line))?;
        }
        Ok(())
    });
    let subscriber = subscriber.compact().fmt_fields(fields.delimited(" "));
    subscriber.try_init().map_err(anyhow::Error::from_boxed)
}
