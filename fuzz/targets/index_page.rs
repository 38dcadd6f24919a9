//! Any bytes as the page of a project on a Python index: JSON where they begin with a brace, else HTML.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let page = String::from_utf8_lossy(data);
    let kind = if data.first() == Some(&b'{') { "application/vnd.pypi.simple.v1+json" } else { "text/html" };
    let found = octet_hub::fuzz::index_page(kind, &page).unwrap_or(0);
    assert!(found <= page.len(), "a link takes at least a character");
});
