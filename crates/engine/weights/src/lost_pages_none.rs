//! What stands for `lost_pages` on systems where a missing page of a mapped file is not looked for.

use std::io;
use std::ops::Range;

/// A mapping that is watched; there is none.
pub struct Watched(std::convert::Infallible);

impl Watched {
    /// Watches nothing.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: Range<usize>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether a page was missing.
    pub fn is_lost(&self) -> bool {
        match self.0 {}
    }
}
