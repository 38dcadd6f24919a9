//! SentencePiece's BPE, as in GGUF files of Llama 2, Mistral and Mixtral (`tokenizer.ggml.model = "llama"`): merges the neighbours
//! whose union has the highest score while it is in the vocabulary; writes the rest as bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::added::Found;
use super::vocab::{TokenKind, Vocab, byte_of};

/// The merge table.
#[derive(Debug)]
pub(super) struct Spm {
    /// Text of every normal token, with its id and score.
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// The tokens for single bytes.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Insert a space before each text that follows the beginning or an added token.
    add_space_prefix: bool,
    /// All characters that follow each other in a token: others never merge.
    neighbours: HashSet<(char, char)>,
}

/// A pair of neighbours that could merge.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Total bytes of both, to detect that one of them has changed since.
    len: usize,
}

impl Ord for Pair {
    /// The highest score first, then the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

/// A piece of the text; `len` is 0 once it has merged into its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A character as tokens write it.
fn spelled(c: char) -> char {
    if c == ' ' { '▁' } else { c }
}

impl Spm {
    /// Uses the normal and byte tokens of `vocab`; `scores` has one value per id.
    pub(super) fn new(vocab: &Vocab, scores: &[f32], add_space_prefix: bool) -> Result<Self, String> {
        let mut pieces: HashMap<Box<str>, (u32, f32)> = HashMap::new();
        let (mut bytes, mut unknown) = ([None; 256], None);
        for id in vocab.ids() {
            let text = vocab.text(id).unwrap_or_default();
            match vocab.kind(id) {
                TokenKind::Normal => {
                    pieces.entry(text.into()).or_insert((id, scores[id as usize]));
                }
                TokenKind::Byte => {
                    let byte = byte_of(text)
                        .ok_or_else(|| format!("byte token {id} is called '{text}', not <0xNN>"))?;
                    bytes[byte as usize] = Some(id);
                }
                TokenKind::Unknown => unknown = unknown.or(Some(id)),
                _ => {}
            }
        }
        let neighbours = pieces.keys().flat_map(|p| p.chars().zip(p.chars().skip(1))).collect();
        Ok(Self { pieces, bytes, unknown, add_space_prefix, neighbours })
    }

    /// Appends the tokens of `piece`, which begins at byte `at` of the text; `found` are the added tokens in it.
    pub(super) fn encode(
        &self,
        piece: &str,
        at: usize,
        found: &[Found],
        out: &mut Vec<u32>,
    ) -> Result<(), String> {
        let mut done = at;
        for Found { start, end, id } in found {
            self.stretch(&piece[done - at..start - at], at == 0 || done > at, out)?;
            out.push(*id);
            done = *end;
        }
        self.stretch(&piece[done - at..], at == 0 || done > at, out)
    }

    /// Whether no token spans the boundary between `left` and `right`.
    pub(super) fn ends_word(&self, left: &str, right: &str) -> bool {
        let ends = left.chars().next_back().zip(right.chars().next());
        ends.is_some_and(|(a, b)| !self.neighbours.contains(&(spelled(a), spelled(b))))
    }

    /// Appends the tokens of a text between added tokens; `first` if it follows the beginning or an added token.
    fn stretch(&self, text: &str, first: bool, out: &mut Vec<u32>) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let mut all = String::with_capacity(text.len() + text.len() / 2 + 3);
        if self.add_space_prefix && first {
            all.push('▁');
        }
        all.extend(text.chars().map(spelled));
        let symbols = self.merge(&all);
        let mut at = 0;
        while at != NONE {
            let s = &symbols[at];
            let piece = &all[s.start..s.start + s.len];
            match self.pieces.get(piece) {
                Some(&(id, _)) => out.push(id),
                None => self.spell(piece, out)?,
            }
            at = s.next;
        }
        Ok(())
    }

    /// Writes a piece that is not in the vocabulary (a single character) as bytes.
    fn spell(&self, piece: &str, out: &mut Vec<u32>) -> Result<(), String> {
        if piece.bytes().all(|b| self.bytes[b as usize].is_some()) {
            out.extend(piece.bytes().filter_map(|b| self.bytes[b as usize]));
            return Ok(());
        }
        let id = self.unknown.ok_or_else(|| {
            format!("the vocabulary has no token for '{piece}', no byte tokens and no unknown token")
        })?;
        out.push(id);
        Ok(())
    }

    /// Merges the characters of `text`, a linked list, as far as the vocabulary allows.
    fn merge(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol { start, len: c.len_utf8(), prev: i.wrapping_sub(1), next: i + 1 })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            self.offer(text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(p) = queue.pop() {
            let (l, r) = (&symbols[p.left], &symbols[p.right]);
            if l.len == 0 || r.len == 0 || l.len + r.len != p.len {
                continue;
            }
            let (prev, next) = (l.prev, r.next);
            symbols[p.left].len = p.len;
            symbols[p.left].next = next;
            symbols[p.right].len = 0;
            if next != NONE {
                symbols[next].prev = p.left;
                self.offer(text, &symbols, p.left, next, &mut queue);
            }
            if prev != NONE {
                self.offer(text, &symbols, prev, p.left, &mut queue);
            }
        }
        symbols
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut BinaryHeap<Pair>) {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if let Some(&(_, score)) = self.pieces.get(&text[start..start + len]) {
            queue.push(Pair { score, left, right, len });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::Spelling;
    use super::*;

    fn spm(tokens: &[(&str, f32, TokenKind)]) -> Spm {
        let mut v = Vocab::new(Spelling::SentencePiece);
        for (text, _, kind) in tokens {
            v.push(text, *kind);
        }
        let scores: Vec<f32> = tokens.iter().map(|t| t.1).collect();
        Spm::new(&v, &scores, true).unwrap()
    }

    #[test]
    fn the_best_score_merges_first() {
        use TokenKind::{Byte, Normal, Unknown};
        let mut tokens = vec![("<unk>", 0.0, Unknown)];
        tokens.extend(["▁", "a", "b", "c"].map(|t| (t, -100.0, Normal)));
        tokens.extend([("ab", -2.0, Normal), ("bc", -1.0, Normal), ("▁a", -3.0, Normal)]);
        let s = spm(&tokens);
        let encode = |s: &Spm, t: &str| {
            let mut out = Vec::new();
            s.encode(t, 0, &[], &mut out).unwrap();
            out
        };
        assert_eq!(encode(&s, "abc"), [7, 6]);
        assert_eq!(encode(&s, "ab"), [1, 5]);
        assert_eq!(encode(&s, "aé"), [7, 0]);
        assert_eq!(encode(&s, ""), [] as [u32; 0]);
        tokens.extend([("<0xC3>", 0.0, Byte), ("<0xA9>", 0.0, Byte)]);
        assert_eq!(encode(&spm(&tokens), "aé"), [7, 8, 9]);
        let mut none = Vec::new();
        assert!(
            spm(&[("a", 0.0, Normal)]).encode("x", 0, &[], &mut none).unwrap_err().contains("no token for")
        );
    }
}
