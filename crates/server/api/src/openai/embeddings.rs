//! `/v1/embeddings`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::prompts::prompts;
use crate::ApiError;
use crate::core::{EmbedRequest, Embeddings, MemoryHandle, Prompt, PromptPart, VectorEncoding};
use crate::dialect::with_prefix;
use crate::json::{self, Field, Result};
use crate::rules::{Rules, only, refused, tuning, tuning_but};

const RULES: Rules = &[
    ("truncate_prompt_tokens", only("[-1]", "an input that does not fit is refused, never cut")),
    ("messages", refused("send texts as 'input'")),
    ("mm_processor_kwargs", tuning("this model reads no images")),
    ("priority", tuning_but("[0]", "all requests are equal")),
    ("add_special_tokens", only("[true]", "the model's tokenizer says which tokens a text begins with")),
    ("output_dtype", only(r#"["float"]"#, "vectors are numbers of 32 bits")),
];

/// Parses the body of a `POST /v1/embeddings`. Empty inputs are refused, as by OpenAI.
///
/// # Errors
/// Fields that are unknown, not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let input = o.require("input")?;
    let empty = input.error("must not contain an empty string");
    let image = input.error("has images: images cannot be embedded");
    let inputs = prompts(input)?;
    if inputs.iter().any(|input| input.images().next().is_some()) {
        return Err(image);
    }
    if inputs.contains(&Prompt::Text(String::new())) {
        return Err(empty);
    }
    let encodings = [("float", VectorEncoding::Float), ("base64", VectorEncoding::Base64)];
    let encoding = o.read("encoding_format", |f| f.one_of(&encodings))?.unwrap_or_default();
    // The second is Mistral's and Voyage's name.
    let dimensions = o.take_any(&["dimensions", "output_dimension"])?;
    let dimensions = dimensions.map(|f| f.count(1..=u32::MAX)).transpose()?;
    let user = o.read("user", Field::string)?;
    let timeout = o.timeout()?;
    let warnings = o.warnings();
    let extra = o.finish(&[RULES])?;
    Ok(EmbedRequest {
        extra,
        model,
        inputs,
        dimensions,
        encoding,
        timeout,
        truncate: false,
        keep_alive: None,
        context_length: None,
        user,
        warnings: warnings.take(),
        memory: MemoryHandle::default(),
    })
}

/// The request for a provider whose name of the model is `model`. Vectors are requested as numbers: not every server has another
/// encoding.
pub fn body(request: &EmbedRequest, model: &str) -> Map<String, Value> {
    let input = |p: &Prompt| match p {
        Prompt::Text(text) => Value::from(text.as_str()),
        Prompt::Tokens(ids) => Value::from(ids.clone()),
        // Only llama.cpp's own endpoints accept these, and this request is for others.
        Prompt::Mixed(parts) => parts.iter().map(PromptPart::to_json).collect(),
    };
    let mut out = Map::new();
    out.insert("model".into(), model.into());
    out.insert("input".into(), request.inputs.iter().map(input).collect());
    if let Some(n) = request.dimensions {
        out.insert("dimensions".into(), n.into());
    }
    if let Some(user) = &request.user {
        out.insert("user".into(), user.as_str().into());
    }
    out
}

/// Parses the vectors of a provider's answer, in the order of the inputs.
///
/// # Errors
/// A body that is not an answer.
pub fn read(body: &[u8]) -> Result<Embeddings> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(default)]
        id: Option<String>,
        data: Vec<Item>,
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        usage: Option<Counts>,
    }
    #[derive(Deserialize)]
    struct Item {
        #[serde(default)]
        index: usize,
        embedding: Numbers,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Numbers {
        Float(Vec<f32>),
        Base64(String),
    }
    #[derive(Deserialize)]
    struct Counts {
        #[serde(default)]
        prompt_tokens: u64,
    }
    let mut wire: Wire = crate::reader::read(body)?;
    // Some servers omit the indices; the sort is stable.
    wire.data.sort_by_key(|item| item.index);
    let vector = |item: Item| match item.embedding {
        Numbers::Float(v) => Ok(v),
        Numbers::Base64(text) => {
            let bytes = STANDARD.decode(text).unwrap_or_default();
            if bytes.is_empty() || !bytes.len().is_multiple_of(4) {
                return Err(ApiError::upstream(
                    "the provider returned an embedding that is not valid base64 floats",
                ));
            }
            Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
    };
    Ok(Embeddings {
        id: wire.id.unwrap_or_default(),
        model: wire.model.unwrap_or_default(),
        vectors: wire.data.into_iter().map(vector).collect::<Result<_>>()?,
        prompt_tokens: wire.usage.map_or(0, |u| u.prompt_tokens),
        ..Embeddings::default()
    })
}

#[derive(Serialize)]
struct Response<'a> {
    /// OpenAI's has none; Mistral's client needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    object: &'static str,
    data: Vec<Item<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Item<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// The body of the answer.
pub fn response(request: &EmbedRequest, embeddings: &Embeddings) -> Vec<u8> {
    let vector = |v| match request.encoding {
        VectorEncoding::Float => Vector::Float(v),
        VectorEncoding::Base64 => {
            let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
            Vector::Base64(STANDARD.encode(bytes))
        }
    };
    let item = |(index, v)| Item { object: "embedding", index, embedding: vector(v) };
    let id = Some(&embeddings.id).filter(|id| !id.is_empty());
    crate::json::to_bytes(&Response {
        id: id.map(|id| with_prefix("embd-", id)),
        object: "list",
        data: embeddings.vectors.iter().map(Vec::as_slice).enumerate().map(item).collect(),
        model: &embeddings.model,
        usage: Usage { prompt_tokens: embeddings.prompt_tokens, total_tokens: embeddings.prompt_tokens },
    })
}
