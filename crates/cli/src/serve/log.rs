//! The server's log on standard error. Started by `serve`.

use std::fmt::Write;
use std::io::IsTerminal;

use octet_config::printable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

use crate::settings::Settings;
use crate::stderr::Log;
use crate::usage_error::Usage;

/// How the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line; requests with all their figures.
    Json,
}

/// Starts logging.
///
/// # Errors
/// An invalid filter.
pub fn start(verbose: bool, format: LogFormat, settings: &Settings) -> anyhow::Result<()> {
    let filter = match &settings.log {
        Some(filter) => {
            EnvFilter::try_new(with_quiet(filter)).map_err(|e| Usage(format!("RUST_LOG: {e}")))?
        }
        None if verbose => EnvFilter::new(with_quiet("info,octet_serve=debug,octet_engine=debug")),
        None => EnvFilter::new(with_quiet("info")),
    };
    let is_terminal = std::io::stderr().is_terminal();
    let wraps = is_terminal && format == LogFormat::Text;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || Log { wraps });
    let subscriber = subscriber.log_internal_errors(false).with_target(false);
    if format == LogFormat::Json {
        octet_serve::log_requests_as_fields();
        let subscriber = subscriber.json().flatten_event(true).with_current_span(false).with_span_list(false);
        return subscriber.try_init().map_err(anyhow::Error::from_boxed);
    }
    let subscriber = subscriber.with_ansi(is_terminal);
    // tracing-subscriber's own formatter examines single characters: 8,000 of a routed request's 187,000 instructions.
    let fields = debug_fn(|out, field, value| {
        if field.name() != "message" {
            write!(out, "{field}=")?;
        }
        let mut text = String::new();
        write!(text, "{value:?}")?;
        lines(out, &text)
    });
    let subscriber = subscriber.compact().fmt_fields(fields.delimited(" "));
    subscriber.try_init().map_err(anyhow::Error::from_boxed)
}

/// A filter with warnings only of the MCP client, unless it names that: at INFO it logs whole messages of the servers.
fn with_quiet(filter: &str) -> String {
    let is_loud =
        |part: &str| ["info", "debug", "trace"].contains(&part.trim().to_ascii_lowercase().as_str());
    match filter.split(',').any(is_loud) && !filter.contains("rmcp") {
        true => format!("{filter},rmcp=warn"),
        false => filter.to_string(),
    }
}

/// Writes untrusted text so that it can neither control the terminal nor forge a log line.
fn lines(out: &mut impl Write, text: &str) -> std::fmt::Result {
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.write_str("\n    ")?;
        }
        out.write_str(&printable(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mcp_client_is_quiet_unless_it_is_named() {
        assert_eq!(with_quiet("info,octet_serve=debug"), "info,octet_serve=debug,rmcp=warn");
        for own in ["error", "octet_serve=debug", "info,rmcp=debug"] {
            assert_eq!(with_quiet(own), own);
        }
    }

    #[test]
    fn what_others_say_stays_within_its_line() {
        let mut out = String::new();
        lines(&mut out, "a\u{1b}[2J\r\nINFO all is well\u{202e}").unwrap();
        assert_eq!(out, "a\\u{1b}[2J\\r\n    INFO all is well\\u{202e}");
    }
}
