//! Percent-encoding of names in paths and forms.

/// A name as one segment of a path, with reserved characters percent-encoded.
pub fn path_segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for b in name.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'@' => out.push(b as char),
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.extend(['%', HEX[usize::from(b >> 4)] as char, HEX[usize::from(b & 15)] as char]);
            }
        }
    }
    // `.` and `..` would change the path.
    if out.chars().all(|c| c == '.') { out.replace('.', "%2E") } else { out }
}
