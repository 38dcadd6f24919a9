//! The vocabulary: the text, bytes and kind of each id. Built by `gguf` and `huggingface`, read by the tokenizer and the detokenizer.

/// Maximum number of ids: eight times the largest known vocabulary, so that a file cannot exhaust the memory.
pub(super) const MAX_VOCAB: usize = 1 << 21;

/// The kind of an id, in the order of GGUF's `tokenizer.ggml.token_type`, which counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Replaces text that the vocabulary cannot represent.
    Unknown,
    /// Begins or ends a turn, a document, an image. Never created from untrusted text.
    Control,
    /// Added to the vocabulary, and visible: `<think>`, `<tool_call>`, runs of spaces.
    UserDefined,
    /// Padding: not a token.
    Unused,
    /// One byte of a SentencePiece vocabulary, `<0x0A>`.
    Byte,
}

impl TokenKind {
    /// The kind with GGUF's number `n`.
    pub(super) fn from_gguf(n: i64) -> Option<Self> {
        Some(match n {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// How a normal token's text represents bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each character is one byte, in GPT-2's printable alphabet.
    ByteLevel,
    /// Plain text with `▁` for a space, and `<0x0A>` for bytes.
    SentencePiece,
    /// Plain text, `##` before a token that continues a word.
    WordPiece,
}

/// Strings or byte strings in one allocation: there may be a quarter of a million.
#[derive(Debug, Default)]
struct Arena {
    data: Vec<u8>,
    ends: Vec<usize>,
}

impl Arena {
    fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(self.data.len());
    }
    /// The bytes of a byte-level token; of one with a character that is not in the alphabet, the text itself.
    fn push_unspelled(&mut self, text: &str) {
        let start = self.data.len();
        for c in text.chars() {
            match unspell_char(c) {
                Some(b) => self.data.push(b),
                None => {
                    self.data.truncate(start);
                    return self.push(text.as_bytes());
                }
            }
        }
        self.ends.push(self.data.len());
    }
    fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.data[start..end])
    }
}

/// All ids in order.
#[derive(Debug)]
pub(super) struct Vocab {
    spelling: Spelling,
    kinds: Vec<TokenKind>,
    texts: Arena,
    bytes: Arena,
    /// One more than the last id that is a token.
    real: usize,
}

impl Vocab {
    pub(super) fn new(spelling: Spelling) -> Self {
        Self { spelling, kinds: Vec::new(), texts: Arena::default(), bytes: Arena::default(), real: 0 }
    }

    /// Appends the next id.
    pub(super) fn push(&mut self, text: &str, kind: TokenKind) {
        self.texts.push(text.as_bytes());
        match (kind, self.spelling) {
            (TokenKind::Unused, _) => self.bytes.push(b""),
            (TokenKind::Normal, Spelling::ByteLevel) => self.bytes.push_unspelled(text),
            (TokenKind::Normal | TokenKind::UserDefined, Spelling::SentencePiece) => {
                self.bytes.push(text.replace('▁', " ").as_bytes());
            }
            (TokenKind::Normal, Spelling::WordPiece) => match text.strip_prefix("##") {
                Some(rest) => self.bytes.push(rest.as_bytes()),
                None => self.bytes.push(format!(" {text}").as_bytes()),
            },
            (TokenKind::Byte, _) => match byte_of(text) {
                Some(b) => self.bytes.push(&[b]),
                None => self.bytes.push(text.as_bytes()),
            },
            _ => self.bytes.push(text.as_bytes()),
        }
        self.kinds.push(kind);
        if kind != TokenKind::Unused {
            self.real = self.kinds.len();
        }
    }

    pub(super) fn real_len(&self) -> usize {
        self.real
    }
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }
    pub(super) fn set_control(&mut self, id: u32) {
        if let Some(k) = self.kinds.get_mut(id as usize) {
            *k = TokenKind::Control;
        }
    }
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).unwrap_or_default()
    }
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        // The arena consists of whole strings, so this never fails.
        std::str::from_utf8(self.texts.get(id as usize)?).ok()
    }
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..self.kinds.len() as u32
    }
}

/// GPT-2's alphabet: printable Latin-1 represents itself, the 68 other bytes the characters from U+0100.
pub(super) fn spell_byte(b: u8) -> char {
    match b {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => b as char,
        0..=b' ' => char::from_u32(0x100 + u32::from(b)).expect("below the surrogates"),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(b - 0x7f)).expect("below the surrogates"),
        0xad => '\u{143}',
    }
}

/// The byte of a character of that alphabet.
fn unspell_char(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(n as u8),
        n @ 0x100..=0x120 => Some((n - 0x100) as u8),
        n @ 0x121..=0x142 => Some((n - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of `<0x0A>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let all: std::collections::HashSet<char> = (0..=255).map(spell_byte).collect();
        assert_eq!(all.len(), 256);
        for b in 0..=255u8 {
            assert_eq!(unspell_char(spell_byte(b)), Some(b));
        }
        assert_eq!((spell_byte(b' '), spell_byte(b'\n'), spell_byte(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(unspell_char('\u{144}'), None);
    }

    #[test]
    fn a_table_knows_text_bytes_and_padding() {
        let mut v = Vocab::new(Spelling::ByteLevel);
        v.push("Ġthe", TokenKind::Normal);
        v.push("<think>", TokenKind::UserDefined);
        v.push("[PAD2]", TokenKind::Unused);
        assert_eq!((v.bytes(0), v.text(0)), (&b" the"[..], Some("Ġthe")));
        assert_eq!(v.bytes(1), b"<think>");
        assert_eq!((v.bytes(2), v.real_len(), v.ids()), (&b""[..], 2, 0..3));
        assert_eq!((v.text(3), v.kind(3)), (None, TokenKind::Unused));

        let mut s = Vocab::new(Spelling::SentencePiece);
        s.push("▁the▁", TokenKind::Normal);
        s.push("<0x0A>", TokenKind::Byte);
        assert_eq!((s.bytes(0), s.bytes(1)), (&b" the "[..], &b"\n"[..]));
        assert_eq!((byte_of("<0x0g>"), byte_of("<0x0>"), byte_of("<0xé>")), (None, None, None));
    }
}
