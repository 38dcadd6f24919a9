//! Writes texts to standard output.

use std::io::Write;

/// Writes to standard output; `main` recognises the error of a closed pipe.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
