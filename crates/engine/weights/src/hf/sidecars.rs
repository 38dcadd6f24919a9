//! Reads the files beside config.json: tokenizer, chat template and generation defaults, as GGUF metadata.

use serde_json::{Map, Value as Json};

use super::dir::Dir;
use super::json::{self, Fields};
use super::sentencepiece;
use crate::{Error, Metadata, Value};

/// Far above the largest known (20 MB), and small against memory.
const TOKENIZER_BYTES_MAX: usize = 256 << 20;
const TEMPLATE_BYTES_MAX: usize = 16 << 20;
const JSON_BYTES_MAX: usize = 32 << 20;

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// A JSON file of the directory; an absent one is an empty object.
pub(super) fn json_file(dir: &Dir, name: &str) -> Result<(String, Map<String, Json>), Error> {
    let path = dir.path(name);
    let map = match dir.text(name, JSON_BYTES_MAX)? {
        Some(text) => json::parse(&path, &text)?,
        None => Map::new(),
    };
    Ok((path, map))
}

/// Reads all files beside config.json, whose fields (of the file, and of the text model) may contain token ids, too.
pub(super) fn read(dir: &Dir, root: &Fields, text: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    let (generation_path, generation) = json_file(dir, "generation_config.json")?;
    let generation = Fields::new(&generation_path, &generation);
    let (tokenizer_path, tokenizer) = json_file(dir, "tokenizer_config.json")?;
    let tokenizer = Fields::new(&tokenizer_path, &tokenizer);

    vocabulary(dir, &tokenizer, metadata)?;
    for field in ["add_bos_token", "add_eos_token"] {
        if let Some(flag) = tokenizer.opt_bool(field)? {
            metadata.insert(&format!("tokenizer.ggml.{field}"), Value::Bool(flag));
        }
    }
    chat_template(dir, &tokenizer, metadata)?;
    token_ids(&[&generation, text, root], &tokenizer, metadata)?;
    pooling(dir, metadata)?;
    sampling(&generation, metadata)
}

/// What embedding models (sentence-transformers) say about the pooling of a text's states.
pub(super) const POOLING: &str = "1_Pooling/config.json";

/// How an embedding model pools, as the number that GGUF has for it.
fn pooling(dir: &Dir, metadata: &mut Metadata) -> Result<(), Error> {
    if !dir.has(POOLING) {
        return Ok(());
    }
    let (path, fields) = json_file(dir, POOLING)?;
    let fields = Fields::new(&path, &fields);
    let number = pooling_type(&path, &fields)?;
    let architecture = metadata.str("general.architecture")?.to_string();
    metadata.insert(&format!("{architecture}.pooling_type"), Value::U64(number));
    Ok(())
}

/// How a text's states are pooled, as sentence-transformers write it: a flag for each way, or since version 6 its name.
fn pooling_type(path: &str, fields: &Fields) -> Result<u64, Error> {
    let known = [
        ("pooling_mode_mean_tokens", "mean", 1),
        ("pooling_mode_cls_token", "cls", 2),
        ("pooling_mode_lasttoken", "lasttoken", 3),
    ];
    let named = fields.opt_str("pooling_mode")?;
    let mut chosen = Vec::new();
    for (flag, name, number) in known {
        if fields.opt_bool(flag)? == Some(true) || named == Some(name) {
            chosen.push(number);
        }
    }
    let [number] = chosen[..] else {
        let names = known.map(|(flag, ..)| flag).join(", ");
        return Err(Error::format(path, format!("does not choose one of {names}")));
    };
    Ok(number)
}

/// Files of a tokenizer, the first that is there: transformers' own, Mistral's, Kimi's, whose texts are kept as they are, or SentencePiece's.
fn vocabulary(dir: &Dir, tokenizer: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    if let Some(raw) = dir.text("tokenizer.json", TOKENIZER_BYTES_MAX)? {
        metadata.insert("tokenizer.huggingface.json", Value::Str(raw));
    } else if let Some(raw) = dir.text("tekken.json", TOKENIZER_BYTES_MAX)? {
        metadata.insert("tokenizer.tekken.json", Value::Str(raw));
    } else if let Some(raw) = dir.text("tiktoken.model", TOKENIZER_BYTES_MAX)? {
        metadata.insert("tokenizer.tiktoken.model", Value::Str(raw));
        // The checkpoints' own code has the expression; all that are published so split words alike.
        metadata.insert("tokenizer.ggml.pre", Value::Str("kimi-k2".into()));
        if let Some(added) = tokenizer.get("added_tokens_decoder") {
            metadata.insert("tokenizer.tiktoken.added", Value::Str(added.to_string()));
        }
    } else if dir.has("tokenizer.model") {
        let file = dir.map("tokenizer.model")?;
        sentencepiece::read(&dir.path("tokenizer.model"), &file.bytes, tokenizer, metadata)?;
    }
    Ok(())
}

/// A separate template file takes precedence; of a list of named ones, "default" and the others are kept under their names.
fn chat_template(dir: &Dir, tokenizer: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    let mut put = |key: &str, template: &str| metadata.insert(key, Value::Str(template.into()));
    match tokenizer.get("chat_template") {
        None => {}
        Some(Json::String(template)) => {
            put(TEMPLATE_KEY, template);
        }
        Some(Json::Array(list)) => {
            for entry in list {
                let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str())
                else {
                    let what = "holds an entry without the strings 'name' and 'template'";
                    return Err(tokenizer.bad("chat_template", what));
                };
                match name {
                    "default" => put(TEMPLATE_KEY, template),
                    name => put(&format!("{TEMPLATE_KEY}.{name}"), template),
                };
            }
        }
        Some(_) => return Err(tokenizer.bad("chat_template", "is neither a string nor a list of named ones")),
    }
    // Checkpoints of multimodal models keep it with the processor.
    let (path, processor) = json_file(dir, "chat_template.json")?;
    if let Some(template) = Fields::new(&path, &processor).opt_str("chat_template")? {
        put(TEMPLATE_KEY, template);
    }
    if let Some(template) = dir.text("chat_template.jinja", TEMPLATE_BYTES_MAX)? {
        put(TEMPLATE_KEY, &template);
    }
    Ok(())
}

/// Ids from the first of `sources` that has them, else of the token that the tokenizer's config names.
fn token_ids(sources: &[&Fields], tokenizer: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    for (kind, key) in [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("pad", "padding_token_id")] {
        let field = format!("{kind}_token_id");
        let mut ids = Vec::new();
        for source in sources {
            ids = source.opt_ids(&field)?.unwrap_or_default();
            if !ids.is_empty() {
                break;
            }
        }
        if ids.is_empty() {
            ids.extend(named_token(tokenizer, &format!("{kind}_token"))?);
        }
        let Some(&first) = ids.first() else { continue };
        metadata.insert(&format!("tokenizer.ggml.{key}"), Value::U64(first as u64)); // ids are not negative
        if kind == "eos" {
            metadata.insert("tokenizer.ggml.eos_token_ids", Value::Ints(ids));
        }
    }
    Ok(())
}

/// Id of the added token that `field` names, as a string or as an object with `content`.
fn named_token(tokenizer: &Fields, field: &str) -> Result<Option<i64>, Error> {
    let content = match tokenizer.get(field) {
        Some(Json::Object(token)) => token.get("content").and_then(Json::as_str),
        other => other.and_then(Json::as_str),
    };
    let (Some(content), Some(Json::Object(added))) = (content, tokenizer.get("added_tokens_decoder")) else {
        return Ok(None);
    };
    let Some((id, _)) = added.iter().find(|(_, token)| token["content"] == content) else { return Ok(None) };
    match id.parse::<u32>() {
        Ok(id) => Ok(Some(id.into())),
        Err(_) => {
            Err(tokenizer.bad("added_tokens_decoder", format!("has the key '{id}'; expected a token id")))
        }
    }
}

/// Sampling defaults under the keys that GGUF has for them, unless the model asks for greedy decoding.
fn sampling(generation: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    if generation.opt_bool("do_sample")? == Some(false) {
        return Ok(());
    }
    if let Some(k) = generation.opt_u32("top_k")? {
        metadata.insert("general.sampling.top_k", Value::U64(k.into()));
    }
    for (field, key) in [
        ("temperature", "temp"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ] {
        if let Some(x) = generation.opt_f64(field)? {
            metadata.insert(&format!("general.sampling.{key}"), Value::F64(x));
        }
    }
    Ok(())
}
