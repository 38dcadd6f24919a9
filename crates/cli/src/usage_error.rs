//! The error of a wrong command line. Returned by all commands, recognised by `main`.

/// A usage error found after parsing; exits with 2, like clap's.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
