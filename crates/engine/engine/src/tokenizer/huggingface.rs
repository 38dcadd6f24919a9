//! A tokenizer from a Hugging Face `tokenizer.json`.
//!
//! The file is parsed here and not by the crate `tokenizers`, which trusts it: some damaged merges and some normalisers make it index
//! out of bounds. Its own parsers are used for the normaliser and the pre-tokenizer after `known_steps` has checked them.

use std::collections::HashMap;

use octet_weights::{Error, Metadata};
use serde::Deserialize;
use serde_json::Value;

use super::added::Added;
use super::frames::Frames;
use super::models::{BpeSpec, UnigramSpec, WordPieceSpec, Words};
use super::pipeline::{Pipeline, Step};
use super::steps;
use super::vocab::{MAX_VOCAB, Spelling, TokenKind, Vocab, byte_of};
use super::{HUGGING_FACE_KEY, Model, Parts, growth};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: ModelFile,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// A model of any kind: the fields of all.
#[derive(Deserialize)]
struct ModelFile {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: VocabForm,
    #[serde(default)]
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<usize>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Ids by text, or (Unigram) texts and scores by id.
#[derive(Deserialize)]
#[serde(untagged)]
enum VocabForm {
    Map(HashMap<String, u32>),
    List(Vec<(String, f64)>),
    Other(serde::de::IgnoredAny),
}

impl Default for VocabForm {
    fn default() -> Self {
        Self::Map(HashMap::new())
    }
}

/// Two tokens: as a pair, or in older files as one string with a space.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

pub(super) fn load(metadata: &Metadata, json: &str) -> Result<Parts, Error> {
    parse(json).map_err(|e| Error::key(metadata.file(), HUGGING_FACE_KEY, e))
}

fn parse(json: &str) -> Result<Parts, String> {
    let file: File =
        serde_json::from_str(json).map_err(|e| format!("is not a supported tokenizer.json: {e}"))?;
    growth::check_steps([file.normalizer.as_ref(), file.pre_tokenizer.as_ref()])?;
    let kind = Kind::of(&file.model)?;
    let decoding = Decoding::of(file.decoder.as_ref(), kind)?;
    let frames = file.post_processor.as_ref().map(Frames::of_post_processor).transpose()?.flatten();
    let (words, table) = model(file.model, kind, &file.added_tokens, decoding.spelling)?;

    let specials: HashMap<u32, &AddedToken> = file.added_tokens.iter().map(|a| (a.id, a)).collect();
    let mut vocab = Vocab::new(decoding.spelling);
    for (id, text) in table.iter().enumerate() {
        match (specials.get(&(id as u32)), text) {
            (Some(a), _) if a.special => vocab.push(&a.content, TokenKind::Control),
            (Some(a), _) => vocab.push(&a.content, TokenKind::UserDefined),
            (None, Some(t)) if decoding.byte_tokens && byte_of(t).is_some() => vocab.push(t, TokenKind::Byte),
            (None, Some(t)) => vocab.push(t, TokenKind::Normal),
            (None, None) => vocab.push("", TokenKind::Unused),
        }
    }
    let pipeline = Pipeline {
        normalizer: file.normalizer.map(|v| steps::normalizer(&v)).transpose()?.flatten(),
        steps: match file.pre_tokenizer.filter(|v| !v.is_null()) {
            Some(v) => vec![Step::Library(steps::pre_tokenizer(&v)?)],
            None => Vec::new(),
        },
        words,
    };
    let mut added = Vec::with_capacity(file.added_tokens.len());
    for a in file.added_tokens.into_iter().filter(|a| !a.content.is_empty()) {
        let plain = Added::plain(a.id, &a.content, TokenKind::UserDefined);
        growth::check_added(std::iter::once(&plain))?; // before it is normalised
        added.push(Added {
            id: a.id,
            pattern: if a.normalized { pipeline.normalize(&a.content)? } else { a.content.clone() },
            text: a.content,
            control: a.special,
            lstrip: a.lstrip,
            rstrip: a.rstrip,
            single_word: a.single_word,
            normalized: a.normalized,
        });
    }
    let bos = frames.as_ref().and_then(|f| f.prefix().first().copied());
    Ok(Parts {
        added,
        model: Model::Steps(Box::new(pipeline)),
        vocab,
        bos,
        add_bos: bos.is_some(),
        frames,
        strip_first_space: decoding.strip_first_space,
    })
}

/// The kind of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bpe,
    WordPiece,
    Unigram,
}

impl Kind {
    /// Old files do not name it.
    fn of(m: &ModelFile) -> Result<Self, String> {
        let by_form = match &m.vocab {
            VocabForm::List(_) => Self::Unigram,
            _ if m.max_input_chars_per_word.is_some() => Self::WordPiece,
            _ => Self::Bpe,
        };
        match m.kind.as_deref() {
            None => Ok(by_form),
            Some("BPE") => Ok(Self::Bpe),
            Some("WordPiece") => Ok(Self::WordPiece),
            Some("Unigram") => Ok(Self::Unigram),
            Some(other) => Err(format!("has a model of type '{other}'; known: BPE, WordPiece, Unigram")),
        }
    }
}

/// Checks the model; returns it and the text of each id.
fn model(
    m: ModelFile,
    kind: Kind,
    added: &[AddedToken],
    spelling: Spelling,
) -> Result<(Words, Vec<Option<String>>), String> {
    if m.dropout.is_some_and(|d| d != 0.0) {
        return Err("sets 'dropout' (random merges), which is only for training".into());
    }
    let last_added = added.iter().map(|a| a.id).max();
    match (kind, m.vocab) {
        (Kind::Unigram, VocabForm::List(mut pieces)) => {
            let mut table = table(pieces.len().checked_sub(1).map(|n| n as u32).max(last_added))?;
            for (place, (text, _)) in table.iter_mut().zip(&pieces) {
                *place = Some(text.clone());
            }
            // Control tokens have the best score, and would be found in any text.
            for a in added.iter().filter(|a| a.special && Some(a.id as usize) != m.unk_id) {
                if let Some((text, _)) = pieces.get_mut(a.id as usize) {
                    text.clear();
                }
            }
            let spec = UnigramSpec { pieces, unk: m.unk_id, byte_fallback: m.byte_fallback };
            Ok((spec.build()?, table))
        }
        (Kind::Bpe | Kind::WordPiece, VocabForm::Map(map)) => {
            let table = texts(&map, last_added)?;
            let vocab = map.into_iter().collect();
            let words = if kind == Kind::WordPiece {
                WordPieceSpec {
                    vocab,
                    unk_token: m.unk_token.unwrap_or_else(|| "[UNK]".into()),
                    prefix: m.continuing_subword_prefix.unwrap_or_else(|| "##".into()),
                    chars_max: m.max_input_chars_per_word.unwrap_or(100),
                }
                .build()?
            } else {
                BpeSpec {
                    vocab,
                    merges: merges(m.merges)?,
                    ignore_merges: m.ignore_merges,
                    byte_fallback: m.byte_fallback,
                    fuse_unk: m.fuse_unk,
                    unk_token: m.unk_token,
                    continuing_subword_prefix: m.continuing_subword_prefix,
                    end_of_word_suffix: m.end_of_word_suffix,
                    byte_level: spelling == Spelling::ByteLevel,
                }
                .build()?
            };
            Ok((words, table))
        }
        _ => Err(format!("has a {kind:?} model whose vocabulary has another model's form")),
    }
}

/// Room for ids up to `last`.
fn table(last: Option<u32>) -> Result<Vec<Option<String>>, String> {
    let len = last.ok_or("has no tokens")? as usize + 1;
    if len > MAX_VOCAB {
        return Err(format!("has a token {}; at most {MAX_VOCAB} tokens are allowed", len - 1));
    }
    Ok(vec![None; len])
}

/// The text of each id.
fn texts(map: &HashMap<String, u32>, last_added: Option<u32>) -> Result<Vec<Option<String>>, String> {
    let mut table = table(map.values().copied().max().max(last_added))?;
    for (text, &id) in map {
        if let Some(other) = &table[id as usize] {
            return Err(format!("gives id {id} to both '{other}' and '{text}'"));
        }
        table[id as usize] = Some(text.clone());
    }
    Ok(table)
}

fn merges(list: Vec<Merge>) -> Result<Vec<(String, String)>, String> {
    let pair = |(i, merge)| match merge {
        Merge::Pair(a, b) => Ok((a, b)),
        Merge::Line(l) => match l.split_once(' ') {
            Some((a, b)) => Ok((a.to_string(), b.to_string())),
            None => Err(format!("has the merge '{l}' at {i}; expected two tokens")),
        },
    };
    list.into_iter().enumerate().map(pair).collect()
}

/// How tokens represent bytes, from the file's decoder.
#[derive(Debug)]
struct Decoding {
    spelling: Spelling,
    byte_tokens: bool,
    strip_first_space: bool,
}

impl Decoding {
    fn of(decoder: Option<&Value>, kind: Kind) -> Result<Self, String> {
        let spaced = |spelling| Self { spelling, byte_tokens: false, strip_first_space: true };
        let Some(decoder) = decoder.filter(|d| !d.is_null()) else {
            return match kind {
                Kind::Bpe => Err("has no decoder, so what its tokens spell is unknown".into()),
                Kind::WordPiece => Ok(spaced(Spelling::WordPiece)),
                Kind::Unigram => Ok(spaced(Spelling::SentencePiece)),
            };
        };
        let steps: Vec<&Value> = match decoder["decoders"].as_array() {
            Some(list) => list.iter().collect(),
            None => vec![decoder],
        };
        let mut out = Self { spelling: Spelling::ByteLevel, byte_tokens: false, strip_first_space: false };
        let mut spelled = false;
        for step in steps {
            match step["type"].as_str().unwrap_or("") {
                "ByteLevel" => spelled = true,
                "WordPiece" if kind == Kind::WordPiece => {
                    (out, spelled) = (spaced(Spelling::WordPiece), true);
                }
                "Replace" if step["pattern"]["String"] == "▁" && step["content"] == " " => {
                    (out.spelling, spelled) = (Spelling::SentencePiece, true);
                }
                "Metaspace" if step["replacement"] == "▁" => {
                    (out.spelling, spelled) = (Spelling::SentencePiece, true);
                    out.strip_first_space =
                        step["prepend_scheme"] != "never" && step["add_prefix_space"] != false;
                }
                "ByteFallback" => out.byte_tokens = true,
                "Fuse" => {}
                "Strip" if step["content"] == " " && step["stop"] == 0 => {
                    out.strip_first_space |= step["start"].as_u64().is_some_and(|n| n > 0);
                }
                other => {
                    return Err(format!(
                        "has a decoder '{other}' that is not supported; supported: ByteLevel, WordPiece, or Replace and \
                         Metaspace of '▁' with ByteFallback, Fuse and Strip"
                    ));
                }
            }
        }
        if spelled {
            Ok(out)
        } else {
            Err("has a decoder that neither ByteLevel nor '▁' is part of".into())
        }
    }
}
