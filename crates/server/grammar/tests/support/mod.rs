//! Vocabularies to test on: 256 bytes and a few special tokens, and Qwen3.6's. And ways to follow a constraint.

#![allow(dead_code)] // each test uses a part of it

use std::sync::Arc;
use std::time::Duration;

use octet_grammar::{Constraint, Grammar, GrammarSpec, Matcher, TimeLimits, Token, Vocabulary};

/// The special tokens of the byte vocabulary, from 256.
const SPECIAL: [&str; 6] =
    ["<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>", "]<]minimax[>["];

/// The 256 bytes by their own numbers, then special tokens: 256 `<|im_end|>` (the end of an answer) and so on.
///
/// Common cases have generous time limits: the machine may be busy.
pub fn bytes() -> Arc<Vocabulary> {
    bytes_within(PATIENT)
}

/// Far more than any common case takes.
const PATIENT: TimeLimits = TimeLimits { compile: Duration::from_secs(300), step: Duration::from_secs(60) };

/// The same with these limits of time.
pub fn bytes_within(times: TimeLimits) -> Arc<Vocabulary> {
    let text = (0..=255u8).map(|b| Token::Text(vec![b]));
    let all = text.chain(SPECIAL.map(|s| Token::Special(s.into())));
    Vocabulary::with_times(all, &[256], |s| Some(s.bytes().map(u32::from).collect()), times).unwrap()
}

/// A vocabulary of a tokenizer.json with GPT-2's spelling of bytes, and what encodes with it.
pub struct Real {
    pub tokens: Vec<Token>,
    pub eos: Vec<u32>,
    tokenizer: Arc<tokenizers::Tokenizer>,
}

impl Real {
    /// Qwen3.6's, with the 243 rows of padding that the model's logits have; `None` (said) without the reference data.
    pub fn qwen() -> Option<Self> {
        let path = octet_testkit::shared("tokenizer/qwen3_6/tokenizer.json")?;
        let tokenizer = tokenizers::Tokenizer::from_file(&path).unwrap();
        let added = tokenizer.get_added_tokens_decoder();
        let mut tokens = vec![Token::Unused; 248_320];
        for (text, id) in tokenizer.get_vocab(true) {
            tokens[id as usize] = match added.get(&id) {
                Some(_) => Token::Special(text),
                None => Token::Text(text.chars().map(byte_of).collect()),
            };
        }
        let eos = ["<|im_end|>", "<|endoftext|>"].map(|t| tokenizer.token_to_id(t).unwrap());
        Some(Self { tokens, eos: eos.into(), tokenizer: Arc::new(tokenizer) })
    }

    pub fn vocabulary(&self) -> Arc<Vocabulary> {
        let tokenizer = self.tokenizer.clone();
        // No text of ours holds an added token, so there is no need to keep them from being found.
        let encode = move |s: &str| Some(tokenizer.encode_fast(s, false).ok()?.get_ids().to_vec());
        Vocabulary::with_times(self.tokens.iter().cloned(), &self.eos, encode, PATIENT).unwrap()
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }
}

/// The byte that a character of GPT-2's alphabet stands for.
fn byte_of(c: char) -> u8 {
    match u32::from(c) {
        n @ 0x100..=0x120 => (n - 0x100) as u8,
        n @ 0x121..=0x142 => (n - 0x121 + 0x7f) as u8,
        0x143 => 0xad,
        n => n as u8,
    }
}

/// The end of an answer in the byte vocabulary.
pub const EOS: u32 = 256;

/// The texts of the byte vocabulary's tokens, in the order of their ids.
pub fn text_of(ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    for &id in ids {
        match id {
            0..=255 => bytes.push(id as u8),
            _ => bytes.extend_from_slice(SPECIAL[id as usize - 256].as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The tokens of a text in the byte vocabulary: tags are special tokens.
pub fn ids_of(text: &str) -> Vec<u32> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.bytes().next() {
        let special = SPECIAL.iter().position(|s| rest.starts_with(s));
        out.push(special.map_or(u32::from(first), |i| 256 + i as u32));
        match special {
            Some(i) => rest = &rest[SPECIAL[i].len()..],
            // Not the middle of a character: tags are ASCII.
            None => {
                let len = rest.chars().next().map_or(1, char::len_utf8);
                out.extend(rest.bytes().take(len).skip(1).map(u32::from));
                rest = &rest[len..];
            }
        }
    }
    out
}

/// A matcher of this constraint.
pub fn matcher(vocabulary: &Arc<Vocabulary>, spec: GrammarSpec) -> Matcher {
    compile(vocabulary, spec, false).unwrap_or_else(|e| panic!("{e}")).matcher()
}

/// Compiles a constraint; with `thinking` the answer begins in thoughts.
pub fn compile(
    vocabulary: &Arc<Vocabulary>,
    spec: GrammarSpec,
    thinking: bool,
) -> Result<Grammar, octet_grammar::Error> {
    let reasoning_end = thinking.then(|| "</think>".to_string());
    Grammar::compile(vocabulary, &Constraint { spec, reasoning_end, header: None })
}

/// Whether a whole answer is allowed: each of its tokens both in the mask and taken, and the end behind it.
pub fn takes(matcher: &Matcher, ids: &[u32]) -> bool {
    let mut matcher = matcher.clone();
    let mut bits = vec![0u32; 260_000 / 32];
    for &id in ids {
        matcher.mask(&mut bits).unwrap();
        let allowed = bits[id as usize / 32] >> (id % 32) & 1 == 1;
        assert_eq!(matcher.accept(id).is_ok(), allowed, "the mask and the matcher differ on token {id}");
        if !allowed {
            return false;
        }
    }
    matcher.may_end().unwrap()
}

/// Tokens that lead to the end of an answer, the fastest first: the end itself, the end of a text in tags, the ends of JSON.
fn ends(text_end: &str) -> [Vec<u32>; 6] {
    [vec![EOS], ids_of(text_end), ids_of("\""), ids_of("'"), ids_of("]"), ids_of("}")]
}

/// Whether it may come next. The end of a text that may come twice is part of a text.
fn is_end(matcher: &Matcher, end: &[u32]) -> bool {
    let is_bracket = end == ids_of("]") || end == ids_of("}") || end == [EOS];
    takes_next(matcher, end) && (is_bracket || !takes_next(matcher, &end.repeat(2)))
}

fn takes_next(matcher: &Matcher, ids: &[u32]) -> bool {
    let mut matcher = matcher.clone();
    ids.iter().all(|&id| matcher.accept(id).is_ok())
}

/// Draws an answer from what is allowed, by `seed` (not 0); after `hurry` tokens in the way that ends it soonest.
pub fn walk(matcher: &Matcher, seed: u64, hurry: usize) -> Vec<u32> {
    walk_to(matcher, seed, hurry, "\n</parameter>\n")
}

/// The same, where texts in tags end with this.
pub fn walk_to(matcher: &Matcher, mut seed: u64, hurry: usize, text_end: &str) -> Vec<u32> {
    let ends = ends(text_end);
    let mut matcher = matcher.clone();
    let (mut bits, mut ids) = (vec![0u32; 9], Vec::new());
    seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    loop {
        matcher.mask(&mut bits).unwrap();
        let allowed: Vec<u32> =
            (0..288).filter(|id| bits[id / 32] >> (id % 32) & 1 == 1).map(|id| id as u32).collect();
        assert!(!allowed.is_empty(), "nothing may follow {:?}", text_of(&ids));
        assert!(ids.len() < hurry + 20_000, "no end in sight: {:?}", text_of(&ids));
        // xorshift64
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        if let Some(end) = ends.iter().find(|end| ids.len() > hurry && is_end(&matcher, end)) {
            if **end == [EOS] {
                return ids;
            }
            end.iter().for_each(|&id| matcher.accept(id).unwrap());
            ids.extend_from_slice(end);
            continue;
        }
        // One draw in two among letters, digits and signs, so that not all is white space and odd bytes.
        let plain: Vec<u32> =
            allowed.iter().copied().filter(|id| *id < 128 && (*id as u8).is_ascii_graphic()).collect();
        let of = if plain.is_empty() || seed & 1 == 1 && ids.len() <= hurry { &allowed } else { &plain };
        let id = of[(seed >> 8) as usize % of.len()];
        matcher.accept(id).unwrap();
        if id == EOS {
            return ids;
        }
        ids.push(id);
    }
}
