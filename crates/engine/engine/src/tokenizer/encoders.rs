//! WordPiece and Unigram from GGUF's `tokenizer.ggml.*` keys: the tokenizers of embedding models and rerankers.

use octet_weights::{Error, Metadata, Value};
use tokenizers::normalizers::{BertNormalizer, NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

use super::added::Added;
use super::frames::{Ends, Frames};
use super::models::{UnigramSpec, WordPieceSpec};
use super::pipeline::{Pipeline, Step};
use super::vocab::{Spelling, TokenKind, Vocab};
use super::{Model, Parts, charsmap};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// BERT's. GGUF writes `▁word` for a token that begins a word, and the others as they are; BERT writes `word` and `##part`.
pub(super) fn word_piece(metadata: &Metadata, (file, added): (Vocab, Vec<Added>)) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let vocab = bert_names(&file);
    let id = |name: &str, default: u32| token_id(metadata, name, &vocab, default);
    let unknown = id("unknown", 100)?.ok_or_else(|| bad(TOKENS, "has no unknown token".into()))?;
    let (cls, sep) = (id("cls", 101)?, id("seperator", 102)?.or(id("separator", 102)?));
    let bos = metadata.opt_u32("tokenizer.ggml.bos_token_id")?.or(cls);

    let names = || vocab.ids().filter_map(|id| Some((vocab.text(id)?.to_string(), id)));
    let cased = vocab.ids().any(|id| {
        let text = vocab.text(id).unwrap_or_default();
        vocab.kind(id) == TokenKind::Normal && text.chars().any(char::is_uppercase)
    });
    let flag = |key: &str| metadata.opt_bool(&format!("tokenizer.ggml.normalizer.{key}"));
    let lowercase = flag("lowercase")?.unwrap_or(!cased);
    let accents = flag("strip_accents")?.or(Some(lowercase));
    let spec = WordPieceSpec {
        vocab: names().filter(|(text, _)| !text.is_empty()).collect(),
        unk_token: vocab.text(unknown).unwrap_or_default().to_string(),
        prefix: "##".into(),
        chars_max: 100,
    };
    let pipeline = Pipeline {
        normalizer: Some(NormalizerWrapper::BertNormalizer(BertNormalizer::new(
            true, true, accents, lowercase,
        ))),
        steps: vec![Step::Library(PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer))],
        words: spec.build().map_err(|e| bad(TOKENS, e))?,
    };
    let segments = metadata.opt_u32("tokenizer.ggml.token_type_count")?.is_none_or(|n| n > 1);
    let add = |name: &str| metadata.opt_bool(&format!("tokenizer.ggml.add_{name}_token"));
    let (add_bos, add_sep) = (add("bos")?.unwrap_or(true), add("sep")?.unwrap_or(true));
    let ends = Ends { bos: bos.filter(|_| add_bos), eos: None, sep: sep.filter(|_| add_sep), segments };
    Ok(Parts {
        model: Model::Steps(Box::new(pipeline)),
        vocab,
        added,
        bos,
        add_bos: true,
        frames: Some(Frames::of_ends(ends)),
        strip_first_space: true,
    })
}

/// The vocabulary with BERT's names.
fn bert_names(file: &Vocab) -> Vocab {
    let mut out = Vocab::new(Spelling::WordPiece);
    // Files of other converters keep BERT's own names.
    let marked = file.ids().any(|id| file.text(id).is_some_and(|t| t.starts_with('▁')));
    for id in file.ids() {
        let text = file.text(id).unwrap_or_default();
        match file.kind(id) {
            TokenKind::Normal if marked => match text.strip_prefix('▁') {
                Some(word) => out.push(word, TokenKind::Normal),
                None if is_bracketed(text) => out.push(text, TokenKind::Normal),
                None => out.push(&format!("##{text}"), TokenKind::Normal),
            },
            kind => out.push(text, kind),
        }
    }
    out
}

/// `[unused5]`, which converters do not mark.
fn is_bracketed(text: &str) -> bool {
    text.len() > 2 && text.starts_with('[') && text.ends_with(']')
}

/// A special token's id, by its key or BERT's usual id.
fn token_id(metadata: &Metadata, name: &str, vocab: &Vocab, default: u32) -> Result<Option<u32>, Error> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let usual = || {
        let bert = matches!(vocab.text(default), Some("[UNK]" | "[CLS]" | "[SEP]"));
        bert.then_some(default)
    };
    match metadata.opt_u32(&key)? {
        Some(id) if vocab.kind(id) == TokenKind::Unused => {
            Err(Error::key(metadata.file(), &key, format!("is {id}, which is no token of the vocabulary")))
        }
        Some(id) => Ok(Some(id)),
        None => Ok(usual()),
    }
}

/// SentencePiece's Unigram model: T5, XLM-R.
pub(super) fn unigram(metadata: &Metadata, (vocab, added): (Vocab, Vec<Added>)) -> Result<Parts, Error> {
    let bad = |key: &str, what: String| Error::key(metadata.file(), key, what);
    let scores = match metadata.get(SCORES) {
        Some(Value::Floats(scores)) if scores.len() == vocab.ids().len() => scores,
        Some(Value::Floats(scores)) => {
            let what = format!("has {} values for {} tokens", scores.len(), vocab.ids().len());
            return Err(bad(SCORES, what));
        }
        _ => return Err(bad(SCORES, "is not an array of floats; expected the score of each token".into())),
    };
    let unk = metadata.opt_u32("tokenizer.ggml.unknown_token_id")?;
    let unk = unk.or_else(|| vocab.ids().find(|&id| vocab.kind(id) == TokenKind::Unknown));
    let spec = UnigramSpec {
        pieces: pieces(&vocab, scores),
        unk: unk.map(|id| id as usize),
        byte_fallback: vocab.ids().any(|id| vocab.kind(id) == TokenKind::Byte),
    };
    let flag = |name: &str| metadata.opt_bool(&format!("tokenizer.ggml.{name}"));
    let spaces = Spaces {
        merge: flag("remove_extra_whitespaces")?.unwrap_or(false),
        prefix: flag("add_space_prefix")?.unwrap_or(false),
    };
    let map = metadata.opt_ints(CHARSMAP)?.unwrap_or_default();
    let map: Vec<u8> = map.iter().map(|&b| b as u8).collect(); // signed in some files
    let pipeline = Pipeline {
        normalizer: spaces.normalizer(&map).map_err(|e| bad(CHARSMAP, e))?,
        steps: spaces.steps(),
        words: spec.build().map_err(|e| bad(SCORES, e))?,
    };
    let id = |name: &str| metadata.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
    let (bos, eos) = (id("bos")?, id("eos")?);
    let sep = id("seperator")?.or(id("separator")?);
    let (add_bos, add_eos) =
        (flag("add_bos_token")?.unwrap_or(false), flag("add_eos_token")?.unwrap_or(true));
    let add_sep = flag("add_sep_token")?.unwrap_or(sep.is_some());
    let segments = metadata.opt_u32("tokenizer.ggml.token_type_count")?.is_some_and(|n| n > 1);
    let ends = Ends {
        bos: bos.filter(|_| add_bos),
        eos: eos.filter(|_| add_eos),
        sep: sep.filter(|_| add_sep),
        segments,
    };
    Ok(Parts {
        model: Model::Steps(Box::new(pipeline)),
        vocab,
        added,
        bos,
        add_bos,
        frames: Some(Frames::of_ends(ends)),
        strip_first_space: spaces.prefix,
    })
}

/// Text and score of each id. Control tokens and padding are never found in a text: their names are taken away.
fn pieces(vocab: &Vocab, scores: &[f64]) -> Vec<(String, f64)> {
    let piece = |id: u32| match vocab.kind(id) {
        TokenKind::Control | TokenKind::Unused => (String::new(), 0.0),
        // Its score is not that of a piece, and must not count as the lowest one.
        TokenKind::Unknown => (vocab.text(id).unwrap_or_default().to_string(), 0.0),
        _ => (vocab.text(id).unwrap_or_default().to_string(), scores[id as usize]),
    };
    vocab.ids().map(piece).collect()
}

/// How white space is encoded.
struct Spaces {
    /// Runs of spaces count as one, and those at the ends do not count.
    merge: bool,
    /// The text begins with a space.
    prefix: bool,
}

impl Spaces {
    fn normalizer(&self, map: &[u8]) -> Result<Option<NormalizerWrapper>, String> {
        let mut steps = Vec::new();
        if !map.is_empty() {
            steps.push(NormalizerWrapper::Precompiled(charsmap::read(map)?));
        }
        if !self.merge {
            if self.prefix {
                steps.push(NormalizerWrapper::Prepend(Prepend::new("▁".into())));
            }
            steps.push(NormalizerWrapper::Replace(Replace::new(" ", "▁").map_err(|e| e.to_string())?));
        }
        Ok((!steps.is_empty()).then(|| NormalizerWrapper::Sequence(Sequence::new(steps))))
    }

    fn steps(&self) -> Vec<Step> {
        if !self.merge {
            return Vec::new();
        }
        let scheme = if self.prefix { PrependScheme::Always } else { PrependScheme::Never };
        vec![
            Step::Library(PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit)),
            Step::Library(PreTokenizerWrapper::Metaspace(Metaspace::new('▁', scheme, true))),
        ]
    }
}
