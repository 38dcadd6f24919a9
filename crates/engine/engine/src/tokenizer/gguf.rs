//! A tokenizer from GGUF's `tokenizer.ggml.*` keys. Called by `Tokenizer::from_metadata`.

use std::collections::HashSet;

use octet_weights::{Error, Metadata, Value};
use tokenizers::normalizers::{NFC, NormalizerWrapper};

use super::added::Added;
use super::bpe::{Bpe, BpeSpec};
use super::spm::Spm;
use super::vocab::{MAX_VOCAB, Spelling, TokenKind, Vocab};
use super::{Model, Parts, pre};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

pub(super) fn load(metadata: &Metadata) -> Result<Parts, Error> {
    match metadata.str(MODEL)? {
        "gpt2" => byte_level(metadata),
        "llama" => sentence_piece(metadata),
        other => Err(Error::key(
            metadata.file(),
            MODEL,
            format!(
                "is '{other}', a tokenizer that is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)"
            ),
        )),
    }
}

/// The vocabulary, and the added tokens in it.
fn vocabulary(metadata: &Metadata, spelling: Spelling) -> Result<(Vocab, Vec<Added>), Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let tokens =
        metadata.opt_strs(TOKENS)?.ok_or_else(|| bad(TOKENS, "is missing; expected the tokens".into()))?;
    if tokens.is_empty() || tokens.len() > MAX_VOCAB {
        return Err(bad(TOKENS, format!("has {} tokens; expected 1 to {MAX_VOCAB}", tokens.len())));
    }
    let types = metadata.opt_ints(TYPES)?;
    if let Some(t) = types.filter(|t| t.len() != tokens.len()) {
        return Err(bad(TYPES, format!("has {} values for {} tokens", t.len(), tokens.len())));
    }
    let mut vocab = Vocab::new(spelling);
    let mut added = Vec::new();
    for (i, text) in tokens.iter().enumerate() {
        let kind = match types {
            None => TokenKind::Normal,
            Some(t) => TokenKind::from_gguf(t[i])
                .ok_or_else(|| bad(TYPES, format!("has {} for token {i}; expected 1 to 6", t[i])))?,
        };
        vocab.push(text, kind);
        if matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
            && !text.is_empty()
        {
            added.push(Added::plain(i as u32, text, kind));
        }
    }
    Ok((vocab, added))
}

fn byte_level(metadata: &Metadata) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let (vocab, added) = vocabulary(metadata, Spelling::ByteLevel)?;
    let name = metadata.opt_str(PRE)?.ok_or_else(|| {
        bad(PRE, "is missing: the file comes from an old converter, and how to cut text is a guess; convert it again".into())
    })?;
    let pre = pre::find(name).map_err(|e| bad(PRE, e))?;
    let lines =
        metadata.opt_strs(MERGES)?.ok_or_else(|| bad(MERGES, "is missing; expected the merges".into()))?;
    let mut merges = Vec::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate() {
        let (a, b) = line
            .split_once(' ')
            .filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '))
            .ok_or_else(|| {
                bad(MERGES, format!("has '{line}' at {i}; expected two tokens with a space between"))
            })?;
        merges.push((a.to_string(), b.to_string()));
    }
    // Added tokens take no part in merges, unless a merge needs them.
    let mut needed: HashSet<String> = HashSet::new();
    for (a, b) in &merges {
        needed.insert(format!("{a}{b}"));
    }
    let spec = BpeSpec {
        vocab: vocab
            .ids()
            .filter_map(|id| Some((vocab.text(id)?, id)))
            .filter(|&(t, id)| vocab.kind(id) == TokenKind::Normal || needed.contains(t))
            .map(|(t, id)| (t.to_string(), id))
            .collect(),
        merges,
        ignore_merges: pre.ignore_merges,
        normalizer: pre.nfc.then(|| NormalizerWrapper::NFC(NFC)),
        pre_tokenizer: Some(pre.build().map_err(|e| bad(PRE, e))?),
        byte_level: true,
        ..BpeSpec::default()
    };
    Ok(Parts {
        model: Model::Bpe(Box::new(Bpe::new(spec).map_err(|e| bad(MERGES, e))?)),
        vocab,
        added,
        bos: None,
        add_bos: pre.add_bos,
        strip_first_space: false,
    })
}

fn sentence_piece(metadata: &Metadata) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let (vocab, added) = vocabulary(metadata, Spelling::SentencePiece)?;
    let scores: Vec<f32> = match metadata.get(SCORES) {
        Some(Value::Floats(s)) => s.iter().map(|&x| x as f32).collect(),
        Some(_) => return Err(bad(SCORES, "is not an array of floats".into())),
        None => return Err(bad(SCORES, "is missing; expected the score of each token".into())),
    };
    if scores.len() != vocab.ids().len() {
        return Err(bad(SCORES, format!("has {} values for {} tokens", scores.len(), vocab.ids().len())));
    }
    if let Some(i) = scores.iter().position(|s| !s.is_finite()) {
        return Err(bad(SCORES, format!("has {} for token {i}; expected a finite number", scores[i])));
    }
    let space = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spm = Spm::new(&vocab, &scores, space).map_err(|e| bad(TOKENS, e))?;
    Ok(Parts {
        model: Model::Spm(Box::new(spm)),
        vocab,
        added,
        bos: None,
        add_bos: true,
        strip_first_space: space,
    })
}
