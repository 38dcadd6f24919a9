//! A tokenizer from GGUF's `tokenizer.ggml.*` keys.

use ahash::AHashSet;
use octet_weights::{Error, Metadata, Value};
use tokenizers::normalizers::{NormalizerWrapper, Replace};

use super::added::Added;
use super::frames::{Ends, Frames};
use super::models::BpeSpec;
use super::pipeline::Pipeline;
use super::pre::PreTokenizer;
use super::spm::Spm;
use super::vocab::{MAX_VOCAB, Spelling, TokenKind, Vocab, byte_of};
use super::{Model, Parts, encoders, pre, ranks};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

const NO_VOCABULARY: &str =
    "the file has no vocabulary ('none'), so text cannot be tokenized; use a file with one";

pub(super) fn load(metadata: &Metadata) -> Result<Parts, Error> {
    let bad = |what: String| Error::key(metadata.file(), MODEL, what);
    match metadata.str(MODEL)? {
        "gpt2" => bpe(metadata, None),
        "gemma4" => bpe(metadata, Some("gemma4")),
        "llama" => sentence_piece(metadata),
        "bert" => encoders::word_piece(metadata, vocabulary(metadata, Spelling::WordPiece)?),
        "t5" => encoders::unigram(metadata, vocabulary(metadata, Spelling::SentencePiece)?),
        "none" | "no_vocab" => Err(bad(NO_VOCABULARY.into())),
        other => Err(bad(format!(
            "is '{other}', a tokenizer that is not supported; supported: gpt2 (byte-level BPE), gemma4 (BPE of plain text), llama \
             (SentencePiece BPE), bert (WordPiece), t5 (SentencePiece Unigram)"
        ))),
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
        let mut kind = match types {
            None => TokenKind::Normal,
            Some(t) => TokenKind::from_gguf(t[i])
                .ok_or_else(|| bad(TYPES, format!("has {} for token {i}; expected 1 to 6", t[i])))?,
        };
        // Some converters name bytes without marking them.
        if spelling == Spelling::SentencePiece && kind == TokenKind::Normal && byte_of(text).is_some() {
            kind = TokenKind::Byte;
        }
        vocab.push(text, kind);
        if matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
            && !text.is_empty()
        {
            added.push(Added::plain(i as u32, text, kind));
        }
    }
    Ok((vocab, added))
}

/// Byte-pair encoding; `name` is the pre-tokenizer if the file does not name it.
fn bpe(metadata: &Metadata, name: Option<&str>) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let name = match name {
        Some(name) => name,
        None => metadata.opt_str(PRE)?.ok_or_else(|| {
            bad(PRE, "is missing: the file comes from an old converter, and how to cut text is a guess; convert it again".into())
        })?,
    };
    let pre = pre::find(name).map_err(|e| bad(PRE, e))?;
    let spelling = if pre.raw { Spelling::SentencePiece } else { Spelling::ByteLevel };
    let (vocab, added) = vocabulary(metadata, spelling)?;
    let merges = match metadata.opt_strs(MERGES)? {
        Some(lines) => merges(lines).map_err(|e| bad(MERGES, e))?,
        // tiktoken's vocabularies have ranks alone.
        None if pre.ignore_merges => ranks::merges(&normal(&vocab)).map_err(|e| bad(TOKENS, e))?,
        None => return Err(bad(MERGES, "is missing; expected the merges".into())),
    };
    let unknown = metadata.opt_u32("tokenizer.ggml.unknown_token_id")?.filter(|_| pre.raw);
    let spec = BpeSpec {
        vocab: merged_tokens(&vocab, &merges, unknown),
        merges,
        ignore_merges: pre.ignore_merges,
        byte_fallback: pre.raw,
        fuse_unk: pre.raw,
        unk_token: unknown.and_then(|id| vocab.text(id)).map(str::to_string),
        byte_level: !pre.raw,
        ..BpeSpec::default()
    };
    let pipeline = Pipeline {
        normalizer: normalizer(pre).map_err(|e| bad(PRE, e))?,
        steps: pre.build().map_err(|e| bad(PRE, e))?,
        words: spec.build().map_err(|e| bad(MERGES, e))?,
    };
    let frames = if pre.add_sep { Some(separated(metadata, pre.add_bos)?) } else { None };
    Ok(Parts {
        model: Model::Steps(Box::new(pipeline)),
        vocab,
        added,
        bos: None,
        add_bos: pre.add_bos,
        frames,
        strip_first_space: false,
    })
}

fn normalizer(row: &PreTokenizer) -> Result<Option<NormalizerWrapper>, String> {
    if row.raw {
        let spaces = Replace::new(" ", "▁").map_err(|e| e.to_string())?;
        return Ok(Some(NormalizerWrapper::Replace(spaces)));
    }
    Ok(row.nfc.then(pre::nfc))
}

/// The pairs of `tokenizer.ggml.merges`.
fn merges(lines: &[String]) -> Result<Vec<(String, String)>, String> {
    let mut out = Vec::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate() {
        let (a, b) = line
            .split_once(' ')
            .filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '))
            .ok_or_else(|| format!("has '{line}' at {i}; expected two tokens with a space between"))?;
        out.push((a.to_string(), b.to_string()));
    }
    Ok(out)
}

/// The normal tokens in the order of their ids.
fn normal(vocab: &Vocab) -> Vec<&str> {
    vocab.ids().filter(|&id| vocab.kind(id) == TokenKind::Normal).filter_map(|id| vocab.text(id)).collect()
}

/// The tokens that take part in merges: added ones only if a merge needs them.
fn merged_tokens(vocab: &Vocab, merges: &[(String, String)], unknown: Option<u32>) -> Vec<(String, u32)> {
    let normal = |id: u32| matches!(vocab.kind(id), TokenKind::Normal | TokenKind::Byte);
    let added: AHashSet<&str> =
        vocab.ids().filter(|&id| !normal(id)).filter_map(|id| vocab.text(id)).collect();
    let (mut needed, mut joined) = (AHashSet::new(), String::new());
    for (a, b) in merges {
        joined.clear();
        joined.push_str(a);
        joined.push_str(b);
        needed.extend([a, b, &joined].into_iter().filter_map(|t| added.get(t.as_str()).copied()));
    }
    vocab
        .ids()
        .filter_map(|id| Some((vocab.text(id)?, id)))
        .filter(|&(text, id)| normal(id) || Some(id) == unknown || needed.contains(text))
        .map(|(text, id)| (text.to_string(), id))
        .collect()
}

/// BOS, text and the separator, as embedding models of this kind read it.
fn separated(metadata: &Metadata, add_bos: bool) -> Result<Frames, Error> {
    let id = |name: &str| metadata.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
    let flag = |name: &str, default: bool| {
        Ok::<_, Error>(metadata.opt_bool(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    };
    let (bos, eos) = (id("bos")?, id("eos")?);
    let sep = id("seperator")?.or(id("separator")?);
    let (add_bos, add_eos, add_sep) = (flag("bos", add_bos)?, flag("eos", false)?, flag("sep", true)?);
    Ok(Frames::of_ends(Ends {
        bos: bos.filter(|_| add_bos),
        eos: eos.filter(|_| add_eos),
        sep: sep.or(eos).filter(|_| add_sep),
        segments: false,
    }))
}

fn sentence_piece(metadata: &Metadata) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let (vocab, mut added) = vocabulary(metadata, Spelling::SentencePiece)?;
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
    let phi3 = is_phi3(metadata)?;
    for token in &mut added {
        // A run of spaces as one token.
        if !token.control {
            token.pattern = token.text.replace('▁', " ");
        }
        token.rstrip = phi3 && !PHI3_KEEPS_SPACE.contains(&token.text.as_str());
    }
    let spm = Spm::new(&vocab, &scores, space).map_err(|e| bad(TOKENS, e))?;
    Ok(Parts {
        model: Model::Spm(Box::new(spm)),
        vocab,
        added,
        bos: None,
        add_bos: true,
        frames: None,
        strip_first_space: space,
    })
}

/// Phi-3's tokens that do not take the white space behind them, as all others do.
const PHI3_KEEPS_SPACE: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// Whether this is Phi-3's tokenizer, whose rule for white space no key states.
fn is_phi3(metadata: &Metadata) -> Result<bool, Error> {
    let architecture = metadata.opt_str("general.architecture")?;
    Ok(architecture.is_some_and(|a| a == "phi3" || a == "phimoe"))
}
