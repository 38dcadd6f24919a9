//! Entry points for the targets in `fuzz/`, which parse servers' answers. Built with the feature `fuzz` only.

use std::io::Cursor;

use url::Url;

/// Parses a project's page of a Python index; returns the number of files.
pub fn index_page(content_type: &str, page: &str) -> Option<usize> {
    let base = Url::parse("https://user:secret@index.example/simple/project/").ok()?;
    crate::simple_index::offers(&base, content_type, page).ok().map(|offers| offers.len())
}

/// Looks for a member in a wheel; true if it exists.
pub fn wheel_member(wheel: &[u8], name: &str) -> bool {
    crate::wheel::member(Cursor::new(wheel), name).is_ok()
}
