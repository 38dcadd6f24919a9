//! SentencePiece's `tokenizer.model`, for checkpoints without a tokenizer.json, as GGUF's keys.
//!
//! The file is a protobuf message (sentencepiece_model.proto) and not trusted: a field is read only inside its message.

use serde_json::Value as Json;

use super::json::Fields;
use crate::{Error, Metadata, Value};

/// Above any vocabulary: eight times the largest known.
const PIECES_MAX: usize = 1 << 21;
/// Score of added tokens, which merges never make.
const ADDED_SCORE: f64 = -1000.0;

const UNUSED: i64 = 5;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// The parts of the file that are used.
#[derive(Default)]
struct Model {
    tokens: Vec<String>,
    scores: Vec<f64>,
    types: Vec<i64>,
    /// 1 is Unigram, 2 BPE.
    kind: u64,
    charsmap: Vec<u8>,
    space_prefix: bool,
    merge_spaces: bool,
}

/// A field's value.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Float(f32),
}

/// Calls `each` with the number and the value of every field.
fn fields<'a>(
    mut message: &'a [u8],
    mut each: impl FnMut(u64, Field<'a>) -> Result<(), String>,
) -> Result<(), String> {
    const CUT: &str = "ends within a field";
    while !message.is_empty() {
        let tag = varint(&mut message).ok_or(CUT)?;
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut message).ok_or(CUT)?),
            1 => {
                message = message.get(8..).ok_or(CUT)?;
                continue;
            }
            2 => {
                let len = usize::try_from(varint(&mut message).ok_or(CUT)?).map_err(|_| CUT)?;
                let (bytes, rest) = message.split_at_checked(len).ok_or(CUT)?;
                message = rest;
                Field::Bytes(bytes)
            }
            5 => {
                let (bytes, rest) = message.split_first_chunk::<4>().ok_or(CUT)?;
                message = rest;
                Field::Float(f32::from_le_bytes(*bytes))
            }
            other => return Err(format!("has a field of the unknown wire type {other}")),
        };
        each(tag >> 3, value)?;
    }
    Ok(())
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut out = 0u64;
    for i in 0..10 {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        out |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some(out);
        }
    }
    None
}

fn parse(file: &[u8]) -> Result<Model, String> {
    let mut m = Model { kind: 1, space_prefix: true, merge_spaces: true, ..Model::default() };
    fields(file, |number, value| {
        match (number, value) {
            (1, Field::Bytes(piece)) => {
                let (mut text, mut score, mut kind) = (String::new(), 0.0, 1);
                fields(piece, |number, value| {
                    match (number, value) {
                        (1, Field::Bytes(b)) => {
                            text =
                                std::str::from_utf8(b).map_err(|_| "has a piece that is not UTF-8")?.into();
                        }
                        (2, Field::Float(x)) => score = x.into(),
                        (3, Field::Number(n)) => kind = n.min(9) as i64,
                        _ => {}
                    }
                    Ok(())
                })?;
                if m.tokens.len() == PIECES_MAX {
                    return Err(format!("has more than {PIECES_MAX} pieces"));
                }
                m.tokens.push(text);
                m.scores.push(score);
                m.types.push(kind);
            }
            (2, Field::Bytes(trainer)) => fields(trainer, |number, value| {
                if let (3, Field::Number(kind)) = (number, value) {
                    m.kind = kind;
                }
                Ok(())
            })?,
            (3, Field::Bytes(normalizer)) => fields(normalizer, |number, value| {
                match (number, value) {
                    (2, Field::Bytes(map)) => m.charsmap = map.to_vec(),
                    (3, Field::Number(n)) => m.space_prefix = n != 0,
                    (4, Field::Number(n)) => m.merge_spaces = n != 0,
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    if m.tokens.is_empty() {
        return Err("has no pieces".into());
    }
    Ok(m)
}

/// The file's vocabulary and rules; tokens of tokenizer_config.json's `added_tokens_decoder` replace and extend it.
pub(super) fn read(path: &str, file: &[u8], config: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    let bad = |e: String| Error::format(path, e);
    let mut m = parse(file).map_err(bad)?;
    add_tokens(&mut m, config)?;
    let mut put = |key: &str, value: Value| metadata.insert(&format!("tokenizer.ggml.{key}"), value);
    match m.kind {
        1 => {
            put("model", Value::Str("t5".into()));
            put("remove_extra_whitespaces", Value::Bool(m.merge_spaces));
            let map = m.charsmap.iter().map(|&b| b.into()).collect();
            put("precompiled_charsmap", Value::Ints(map));
        }
        2 if m.merge_spaces || !m.charsmap.is_empty() => {
            let what = "normalizes text before byte-pair encoding, which is not supported; add the model's tokenizer.json";
            return Err(bad(what.into()));
        }
        2 => {
            put("model", Value::Str("llama".into()));
        }
        other => return Err(bad(format!("has a model of type {other}; supported: 1 (Unigram), 2 (BPE)"))),
    }
    put("tokens", Value::Strs(m.tokens));
    put("scores", Value::Floats(m.scores));
    put("token_type", Value::Ints(m.types));
    put("add_space_prefix", Value::Bool(m.space_prefix));
    Ok(())
}

fn add_tokens(m: &mut Model, config: &Fields) -> Result<(), Error> {
    let Some(Json::Object(added)) = config.get("added_tokens_decoder") else { return Ok(()) };
    for (id, token) in added {
        let place = id.parse::<usize>().ok().filter(|id| *id < PIECES_MAX);
        let (Some(id), Some(content)) = (place, token["content"].as_str()) else {
            let what = format!("has the entry '{id}'; expected a token id and 'content'");
            return Err(config.bad("added_tokens_decoder", what));
        };
        for i in m.tokens.len()..=id {
            m.tokens.push(format!("[PAD{i}]"));
            m.scores.push(ADDED_SCORE);
            m.types.push(UNUSED);
        }
        m.tokens[id] = content.into();
        // The unknown token stays what it is.
        if m.types[id] != 2 {
            m.types[id] = if token["special"] == true { CONTROL } else { USER_DEFINED };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A BPE model that SentencePiece 0.2.3 trained on three lines (30 pieces, no normalization), in base64.
    const TINY: &str = "\
        Cg4KBTx1bms+FQAAAAAYAgoMCgM8cz4VAAAAABgDCg0KBDwvcz4VAAAAABgDCgkKAmF0FQAAAIAKCQoCdGgVAACAvwoMCgXiloF0aBUAAADACg0KBuKWgXRoZRUA\
        AEDACgsKBOKWgWEVAACAwAoLCgTiloFjFQAAoMAKDQoG4paBY2F0FQAAwMAKCwoE4paBaBUAAODACgsKBOKWgW8VAAAAwQoNCgbiloFoYXQVAAAQwQoJCgJpcxUA\
        ACDBCgkKAm5kFQAAMMEKCwoE4paBbRUAAEDBCgsKBOKWgXMVAABQwQoKCgPiloEVAABgwQoICgF0FQAAcMEKCAoBYRUAAIDBCggKAWgVAACIwQoICgFlFQAAkMEK\
        CAoBYxUAAJjBCggKAW4VAACgwQoICgFvFQAAqMEKCAoBcxUAALDBCggKAWQVAAC4wQoICgFmFQAAwMEKCAoBaRUAAMjBCggKAW0VAADQwRICGAIaDgoIaWRlbnRp\
        dHkSACAA";

    fn tiny() -> Vec<u8> {
        let digit = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            _ => 62 + u8::from(c == b'/'),
        };
        let quads: Vec<u8> = TINY.bytes().map(digit).collect();
        let bytes = |q: &[u8]| q.iter().fold(0u32, |n, d| n << 6 | u32::from(*d)).to_be_bytes();
        quads.chunks_exact(4).flat_map(|q| bytes(q)[1..].to_vec()).collect()
    }

    fn load(file: &[u8], added: Json) -> Result<Metadata, String> {
        let Json::Object(map) = json!({"added_tokens_decoder": added}) else { unreachable!() };
        let mut m = Metadata::new("dir");
        read("tokenizer.model", file, &Fields::new("tokenizer_config.json", &map), &mut m)
            .map_err(|e| e.to_string())?;
        Ok(m)
    }

    #[test]
    fn a_model_becomes_keys() {
        let added = json!({"0": {"content": "<unk>", "special": true}, "31": {"content": "<|x|>", "special": true}, "32": {"content": "▁▁"}});
        let m = load(&tiny(), added).unwrap();
        let tokens = m.opt_strs("tokenizer.ggml.tokens").unwrap().unwrap();
        assert_eq!(tokens[..10], ["<unk>", "<s>", "</s>", "at", "th", "▁th", "▁the", "▁a", "▁c", "▁cat"]);
        assert_eq!(tokens[29..], ["m", "[PAD30]", "<|x|>", "▁▁"]);
        let types = m.opt_ints("tokenizer.ggml.token_type").unwrap().unwrap();
        assert_eq!((&types[..4], &types[29..]), (&[2, 3, 3, 1][..], &[1, 5, 3, 4][..]));
        let Some(Value::Floats(scores)) = m.get("tokenizer.ggml.scores") else { panic!("no scores") };
        assert_eq!((scores[4], scores[29], scores.len()), (-1.0, -26.0, 33));
        assert_eq!(m.str("tokenizer.ggml.model").unwrap(), "llama");
        assert_eq!(m.opt_bool("tokenizer.ggml.add_space_prefix").unwrap(), Some(true));
    }

    #[test]
    fn damage_is_named_and_never_panics() {
        let file = tiny();
        for len in 0..file.len() {
            let _ = load(&file[..len], Json::Null);
        }
        for at in 0..file.len() {
            for flip in [1, 4, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] ^= flip;
                let _ = load(&damaged, Json::Null);
            }
        }
        let refused = |file: &[u8], added: Json, want: &str| {
            let e = load(file, added).unwrap_err();
            assert!(e.contains(want), "{e}");
        };
        refused(&[], Json::Null, "tokenizer.model: has no pieces");
        refused(&file[..5], Json::Null, "ends within a field");
        refused(&[0x0b], Json::Null, "wire type 3");
        refused(&[file.as_slice(), &[0x12, 2, 0x18, 4]].concat(), Json::Null, "type 4; supported: 1");
        refused(&[file.as_slice(), &[0x1a, 2, 0x20, 1]].concat(), Json::Null, "normalizes text before");
        refused(&file, json!({"x": {"content": "a"}}), "tokenizer_config.json: field 'added_tokens_decoder'");
        refused(&file, json!({"5": {}}), "expected a token id");
        let unigram = load(&[file.as_slice(), &[0x12, 2, 0x18, 1]].concat(), Json::Null).unwrap();
        assert_eq!(unigram.str("tokenizer.ggml.model").unwrap(), "t5");
    }
}
