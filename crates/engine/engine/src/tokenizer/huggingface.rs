//! A tokenizer from a Hugging Face `tokenizer.json`. Called by `Tokenizer::from_metadata`.
//!
//! The file is parsed here and not by the crate `tokenizers`, which trusts it: some damaged merges and some normalisers make it index
//! out of bounds. Its own parsers are used for the normaliser and the pre-tokenizer after `known_steps` has checked them.

use std::collections::HashMap;

use octet_weights::{Error, Metadata};
use serde::Deserialize;
use serde_json::Value;

use super::added::Added;
use super::bpe::{Bpe, BpeSpec};
use super::vocab::{MAX_VOCAB, Spelling, TokenKind, Vocab, byte_of};
use super::{HUGGING_FACE_KEY, Model, Parts};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: BpeModel,
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

#[derive(Deserialize)]
struct BpeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: VocabForm,
    #[serde(default)]
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// BPE has a map; other models have lists, which are only reported as unsupported.
#[derive(Deserialize)]
#[serde(untagged)]
enum VocabForm {
    Map(HashMap<String, u32>),
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
    let decoding = Decoding::of(file.decoder.as_ref())?;
    let post = file.post_processor.as_ref();
    let bos = post.and_then(first_special_token);
    let (mut spec, table) = model(file.model, &file.added_tokens)?;

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
    spec.normalizer = file.normalizer.map(|v| step("normalizer", v)).transpose()?;
    spec.pre_tokenizer = file.pre_tokenizer.map(|v| step("pre_tokenizer", v)).transpose()?;
    spec.byte_level = decoding.spelling == Spelling::ByteLevel;
    let bpe = Bpe::new(spec)?;
    let mut added = Vec::with_capacity(file.added_tokens.len());
    for a in file.added_tokens.into_iter().filter(|a| !a.content.is_empty()) {
        added.push(Added {
            id: a.id,
            pattern: if a.normalized { bpe.normalize(&a.content)? } else { a.content.clone() },
            text: a.content,
            control: a.special,
            lstrip: a.lstrip,
            rstrip: a.rstrip,
            single_word: a.single_word,
            normalized: a.normalized,
        });
    }
    Ok(Parts {
        added,
        model: Model::Bpe(Box::new(bpe)),
        vocab,
        bos,
        add_bos: bos.is_some(),
        strip_first_space: decoding.strip_first_space,
    })
}

/// Parses the normaliser or the pre-tokenizer, if all of its steps are known to be safe for any text.
fn step<T: serde::de::DeserializeOwned>(part: &str, v: Value) -> Result<T, String> {
    known_steps(part, &v)?;
    serde_json::from_value(v).map_err(|e| format!("has an unsupported {part}: {e}"))
}

fn known_steps(part: &str, v: &Value) -> Result<(), String> {
    const KNOWN: [(&str, &[&str]); 2] = [
        ("normalizer", &["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Sequence"]),
        ("pre_tokenizer", &["Split", "ByteLevel", "Digits", "Metaspace", "Sequence"]),
    ];
    let kind = v["type"].as_str().unwrap_or("");
    let known = KNOWN.iter().find(|k| k.0 == part).map_or(&[][..], |k| k.1);
    if !known.contains(&kind) {
        return Err(format!("has a {part} '{kind}' that is not supported; supported: {}", known.join(", ")));
    }
    let text = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
    if kind == "Prepend" && !text(&v["prepend"]) || kind == "Replace" && !text(&v["pattern"]["String"]) {
        return Err(format!("has a {part} '{kind}' without a text to put or to look for"));
    }
    let lists = [&v["normalizers"], &v["pretokenizers"]].into_iter().filter_map(Value::as_array);
    lists.flatten().try_for_each(|v| known_steps(part, v))
}

/// Checks the model; returns the merges and the text of each id.
fn model(m: BpeModel, added: &[AddedToken]) -> Result<(BpeSpec, Vec<Option<String>>), String> {
    let kind = m.kind.as_deref().unwrap_or("BPE");
    let VocabForm::Map(map) = m.vocab else {
        return Err(format!("has a model of type '{kind}'; known: BPE"));
    };
    if kind != "BPE" {
        return Err(format!("has a model of type '{kind}'; known: BPE"));
    }
    if m.dropout.is_some_and(|d| d != 0.0) {
        return Err("sets 'dropout' (random merges), which is only for training".into());
    }
    let last = map.values().copied().chain(added.iter().map(|a| a.id)).max();
    let len = last.ok_or("has no tokens")? as usize + 1;
    if len > MAX_VOCAB {
        return Err(format!("has a token {}; at most {MAX_VOCAB} tokens are allowed", len - 1));
    }
    let mut table: Vec<Option<String>> = vec![None; len];
    for (text, &id) in &map {
        if let Some(other) = &table[id as usize] {
            return Err(format!("gives id {id} to both '{other}' and '{text}'"));
        }
        table[id as usize] = Some(text.clone());
    }
    let mut merges = Vec::with_capacity(m.merges.len());
    for (i, merge) in m.merges.into_iter().enumerate() {
        merges.push(match merge {
            Merge::Pair(a, b) => (a, b),
            Merge::Line(l) => match l.split_once(' ') {
                Some((a, b)) => (a.to_string(), b.to_string()),
                None => return Err(format!("has the merge '{l}' at {i}; expected two tokens")),
            },
        });
    }
    let spec = BpeSpec {
        vocab: map.into_iter().collect(),
        merges,
        ignore_merges: m.ignore_merges,
        byte_fallback: m.byte_fallback,
        fuse_unk: m.fuse_unk,
        unk_token: m.unk_token,
        continuing_subword_prefix: m.continuing_subword_prefix,
        end_of_word_suffix: m.end_of_word_suffix,
        ..BpeSpec::default()
    };
    Ok((spec, table))
}

/// How tokens represent bytes, from the file's decoder.
#[derive(Debug)]
struct Decoding {
    spelling: Spelling,
    byte_tokens: bool,
    strip_first_space: bool,
}

impl Decoding {
    fn of(decoder: Option<&Value>) -> Result<Self, String> {
        let decoder =
            decoder.filter(|d| !d.is_null()).ok_or("has no decoder, so what its tokens spell is unknown")?;
        let steps: Vec<&Value> = match decoder["decoders"].as_array() {
            Some(list) => list.iter().collect(),
            None => vec![decoder],
        };
        let mut out = Self { spelling: Spelling::ByteLevel, byte_tokens: false, strip_first_space: false };
        let mut spelled = false;
        for step in steps {
            match step["type"].as_str().unwrap_or("") {
                "ByteLevel" => spelled = true,
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
                        "has a decoder '{other}' that is not supported; supported: ByteLevel, or Replace and Metaspace of '▁' \
                         with ByteFallback, Fuse and Strip"
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

/// The BOS token, from the post-processor.
fn first_special_token(post: &Value) -> Option<u32> {
    if let Some(list) = post["processors"].as_array() {
        return list.iter().find_map(first_special_token);
    }
    let name = post["single"].get(0)?["SpecialToken"]["id"].as_str()?;
    u32::try_from(post["special_tokens"][name]["ids"].get(0)?.as_u64()?).ok()
}
