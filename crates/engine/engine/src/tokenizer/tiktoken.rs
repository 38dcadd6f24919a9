//! Tokenizers of checkpoints without a tokenizer.json: Mistral's `tekken.json`, and `tiktoken.model` of Kimi. Both are tiktoken's
//! vocabularies.

use std::collections::BTreeMap;

use octet_weights::{Error, Metadata};
use serde::Deserialize;

use super::added::Added;
use super::models::BpeSpec;
use super::pipeline::{Pipeline, Step};
use super::vocab::{MAX_VOCAB, Spelling, TokenKind, Vocab, spell_byte};
use super::{Model, Parts, TEKKEN_KEY, TIKTOKEN_ADDED_KEY, TIKTOKEN_KEY, pre, ranks, steps};

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
    #[serde(default = "yes")]
    is_control: bool,
}

fn yes() -> bool {
    true
}

/// The special tokens of files that do not list them, by id.
const TEKKEN_SPECIAL: &[&str] = &[
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Mistral's file. Special tokens have the first ids, the tokens of the text follow by rank.
pub(super) fn tekken(metadata: &Metadata) -> Result<Parts, Error> {
    read_tekken(metadata.str(TEKKEN_KEY)?).map_err(|e| Error::key(metadata.file(), TEKKEN_KEY, e))
}

fn read_tekken(json: &str) -> Result<Parts, String> {
    let file: Tekken =
        serde_json::from_str(json).map_err(|e| format!("is not a supported tekken.json: {e}"))?;
    let (size, special) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    if size > MAX_VOCAB || special >= size {
        return Err(format!("has {size} tokens, {special} of them special; at most {MAX_VOCAB} are allowed"));
    }
    let mut added: BTreeMap<usize, (String, TokenKind)> =
        (0..special).map(|id| (id, (format!("<SPECIAL_{id}>"), TokenKind::Control))).collect();
    let listed = file.special_tokens.unwrap_or_else(|| {
        let token = |(rank, text): (usize, &&str)| TekkenSpecial {
            rank,
            token_str: text.to_string(),
            is_control: true,
        };
        TEKKEN_SPECIAL.iter().enumerate().map(token).collect()
    });
    for t in listed {
        let kind = if t.is_control { TokenKind::Control } else { TokenKind::UserDefined };
        match added.get_mut(&t.rank) {
            Some(place) => *place = (t.token_str, kind),
            None => {
                return Err(format!("has the special token {} of {special}", t.rank));
            }
        }
    }
    let mut words: Ranked = Vec::with_capacity(size - special);
    for t in file.vocab.iter().filter(|t| t.rank < size - special) {
        words.push((t.rank + special, steps::decode(&t.token_bytes)?));
    }
    let split = pre::split(&file.config.pattern).map_err(|e| format!("has an unsupported pattern: {e}"))?;
    let mut parts = parts(words, &added, vec![Step::Library(split)], false)?;
    let bos = added.iter().find(|(_, (text, _))| text == "<s>").map(|(id, _)| *id as u32);
    (parts.bos, parts.add_bos) = (bos, bos.is_some());
    Ok(parts)
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

/// `tiktoken.model`: lines of a token in base64 and its rank, which is its id.
pub(super) fn ranked(metadata: &Metadata) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let words = read_ranks(metadata.str(TIKTOKEN_KEY)?).map_err(|e| bad(TIKTOKEN_KEY, e))?;
    let json = metadata.opt_str(TIKTOKEN_ADDED_KEY)?.unwrap_or("{}");
    let listed: BTreeMap<usize, AddedToken> =
        serde_json::from_str(json).map_err(|e| bad(TIKTOKEN_ADDED_KEY, format!("is not understood: {e}")))?;
    let kind = |special| if special { TokenKind::Control } else { TokenKind::UserDefined };
    let added = listed.into_iter().map(|(id, t)| (id, (t.content, kind(t.special)))).collect();
    let name = metadata.str("tokenizer.ggml.pre")?;
    let pre = pre::find(name).map_err(|e| bad("tokenizer.ggml.pre", e))?;
    let steps = pre.build().map_err(|e| bad("tokenizer.ggml.pre", e))?;
    parts(words, &added, steps, pre.nfc).map_err(|e| bad(TIKTOKEN_KEY, e))
}

/// Tokens of the text, with their ids.
type Ranked = Vec<(usize, Vec<u8>)>;

fn read_ranks(text: &str) -> Result<Ranked, String> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let bad = || format!("has '{line}' in line {}; expected a token in base64 and its rank", i + 1);
        let (token, rank) = line.trim().split_once(' ').ok_or_else(bad)?;
        let rank: usize = rank.parse().ok().filter(|r| *r < MAX_VOCAB).ok_or_else(bad)?;
        out.push((rank, steps::decode(token)?));
    }
    out.sort_unstable_by_key(|(rank, _)| *rank);
    if out.windows(2).any(|w| w[0].0 == w[1].0) {
        return Err("has two tokens of one rank".into());
    }
    Ok(out)
}

/// Assembles the tokens of the text, by id in ascending order, and the added ones.
fn parts(
    words: Ranked,
    added: &BTreeMap<usize, (String, TokenKind)>,
    mut steps: Vec<Step>,
    nfc: bool,
) -> Result<Parts, String> {
    let spelled: BTreeMap<usize, String> =
        words.into_iter().map(|(id, bytes)| (id, bytes.into_iter().map(spell_byte).collect())).collect();
    let last = spelled.keys().chain(added.keys()).max().ok_or("has no tokens")?;
    if *last >= MAX_VOCAB {
        return Err(format!("has a token {last}; at most {MAX_VOCAB} tokens are allowed"));
    }
    let (mut vocab, mut found) = (Vocab::new(Spelling::ByteLevel), Vec::new());
    for id in 0..=*last {
        match (added.get(&id), spelled.get(&id)) {
            (Some((text, kind)), _) => {
                vocab.push(text, *kind);
                if !text.is_empty() {
                    found.push(Added::plain(id as u32, text, *kind));
                }
            }
            (None, Some(text)) => vocab.push(text, TokenKind::Normal),
            (None, None) => vocab.push("", TokenKind::Unused),
        }
    }
    if !steps.iter().any(Step::is_byte_level) {
        steps.push(Step::byte_level());
    }
    let tokens: Vec<&str> = spelled.values().map(String::as_str).collect();
    let spec = BpeSpec {
        merges: ranks::merges(&tokens)?,
        vocab: spelled.into_iter().map(|(id, text)| (text, id as u32)).collect(),
        ignore_merges: true,
        byte_level: true,
        ..BpeSpec::default()
    };
    let pipeline = Pipeline { normalizer: nfc.then(pre::nfc), steps, words: spec.build()? };
    Ok(Parts {
        vocab,
        model: Model::Steps(Box::new(pipeline)),
        added: found,
        bos: None,
        add_bos: false,
        frames: None,
        strip_first_space: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_and_damage_is_named() {
        let (a, b) = ((0, b"a".to_vec()), (1, b"ab".to_vec()));
        assert_eq!(read_ranks("YWI= 1\nYQ== 0\n\n").unwrap(), [a, b]);
        let refused = |text: &str| read_ranks(text).unwrap_err();
        assert!(refused("YQ== 0\nYWI=").contains("in line 2"), "{}", refused("YQ== 0\nYWI="));
        assert!(refused("YQ== 99999999").contains("line 1"));
        assert!(refused("Y? 0").contains("base64"));
        assert!(refused("YQ== 0\nYg== 0").contains("one rank"));
    }
}
