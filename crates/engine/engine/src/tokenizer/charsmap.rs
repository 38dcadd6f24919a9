//! Checks SentencePiece's `precompiled_charsmap`: a trie of byte strings with their replacements, in a model file that is not trusted. The
//! library that applies it follows its offsets without looking.
//!
//! The form: the trie's size in bytes (u32, little-endian), the trie (darts-clone's double array of u32), then the replacements, each
//! ended by a zero byte.

use tokenizers::normalizers::Precompiled;

/// Longest replacement: published maps have 33 bytes (of an Arabic ligature).
const REPLACEMENT_BYTES_MAX: usize = 64;

/// A unit of the double array.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }
    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }
    fn label(self) -> u32 {
        self.0 & 0x8000_00ff
    }
    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & 1 << 9) >> 6)
    }
}

/// The normaliser of a charsmap.
pub(super) fn read(bytes: &[u8]) -> Result<Precompiled, String> {
    let (size, rest) = bytes.split_first_chunk::<4>().ok_or("the charsmap is shorter than its header")?;
    let size = u32::from_le_bytes(*size) as usize;
    let trie = rest.get(..size).ok_or("the charsmap is shorter than its trie")?;
    let texts = std::str::from_utf8(&rest[size..])
        .map_err(|_| "the charsmap's replacements are not UTF-8".to_string())?;
    let mut units: Vec<Unit> =
        trie.chunks_exact(4).map(|b| Unit(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    if units.is_empty() || !size.is_multiple_of(4) {
        return Err(format!("the charsmap has a trie of {size} bytes; expected a multiple of 4"));
    }
    // A child lies within 256 units of its parent's base, perhaps behind the end.
    units.resize(units.len().next_multiple_of(256), Unit(0));
    check(&units, texts)?;

    let mut checked = Vec::with_capacity(4 + 4 * units.len() + texts.len());
    checked.extend((4 * units.len() as u32).to_le_bytes());
    checked.extend(units.iter().flat_map(|u| u.0.to_le_bytes()));
    checked.extend(texts.as_bytes());
    Precompiled::from(&checked).map_err(|e| e.to_string())
}

/// Checks every offset that a search can reach.
fn check(units: &[Unit], texts: &str) -> Result<(), String> {
    let mut seen = vec![false; units.len()];
    let mut open = vec![units[0].offset()];
    while let Some(base) = open.pop() {
        if base >= units.len() {
            return Err(format!("the charsmap's trie of {} units points to unit {base}", units.len()));
        }
        if std::mem::replace(&mut seen[base], true) {
            continue;
        }
        for byte in 1..=255u32 {
            let at = base ^ byte as usize;
            let unit = units[at];
            if unit.label() != byte {
                continue;
            }
            let next = at ^ unit.offset();
            if unit.has_leaf() {
                let value = units.get(next).ok_or("the charsmap's trie has a leaf outside of it")?.value();
                let text =
                    texts.get(value..).ok_or("the charsmap has no replacement where its trie points")?;
                if text.bytes().take_while(|&b| b != 0).count() > REPLACEMENT_BYTES_MAX {
                    return Err(format!(
                        "the charsmap has a replacement of more than {REPLACEMENT_BYTES_MAX} bytes"
                    ));
                }
            }
            open.push(next);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie with the one key "a" and its replacement.
    fn one(replacement: &str) -> Vec<u8> {
        let mut units = vec![0u32; 512];
        units[0] = 256 << 10;
        units[256 ^ 0x61] = 0x61 | 1 << 8 | (1 << 10);
        units[256 ^ 0x60] = 0x8000_0000;
        let mut out = (4 * units.len() as u32).to_le_bytes().to_vec();
        out.extend(units.iter().flat_map(|u| u.to_le_bytes()));
        out.extend(replacement.as_bytes());
        out.push(0);
        out
    }

    #[test]
    fn a_map_replaces() {
        let map = read(&one("bé")).unwrap();
        assert_eq!(map.normalize_string("xaax"), "xbébéx");
        assert!(read(&one(&"b".repeat(65))).err().unwrap().contains("more than 64"));
    }

    /// No damage makes the library look outside of the map.
    #[test]
    fn damage_is_refused_or_harmless() {
        let good = one("b");
        let (mut refused, mut kept) = (0, 0);
        for at in (0..16).chain(4 + 4 * 340..4 + 4 * 356).chain(good.len() - 2..good.len()) {
            for flip in [0x01, 0x02, 0x04, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= flip;
                match read(&bytes) {
                    Ok(map) => {
                        for c in '\u{1}'..'\u{80}' {
                            map.normalize_string(&format!("{c}a"));
                        }
                        kept += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 10 && kept > 10, "{refused} {kept}");
        for len in 0..12 {
            assert!(read(&good[..len]).is_err());
        }
    }
}
