//! What the pictures of `experts` and `route calibrate` have in common.

/// Text as SVG writes it: no character of it is markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
