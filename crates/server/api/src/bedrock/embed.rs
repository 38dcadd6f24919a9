//! Embeddings of Amazon's Titan and of Cohere on Bedrock, through `InvokeModel`.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::ApiError;
use crate::core::{EmbedRequest, Embeddings, Prompt};
use crate::reader;

/// Maximum number of texts in a Cohere request.
const COHERE_TEXTS_MAX: usize = 96;

/// The request format of a model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// One text, without options.
    TitanFirst,
    /// One text.
    Titan,
    /// Several texts.
    Cohere,
}

fn family(model: &str) -> Result<Family, ApiError> {
    if model.contains("titan-embed-text-v1") || model.contains("titan-embed-g1-text") {
        Ok(Family::TitanFirst)
    } else if model.contains("titan-embed") {
        Ok(Family::Titan)
    } else if model.contains("cohere.embed") {
        Ok(Family::Cohere)
    } else {
        let what =
            format!("embeddings of '{model}' at Bedrock are not supported; those of Titan and Cohere are");
        Err(ApiError::invalid("model", what))
    }
}

/// The requests for a model, each with as many of the texts as it accepts.
///
/// # Errors
/// Inputs that are tokens, models of other families, and fields that a family does not have.
pub fn bodies(request: &EmbedRequest, model: &str) -> Result<Vec<Map<String, Value>>, ApiError> {
    let family = family(model)?;
    let text = |input: &Prompt| match input {
        Prompt::Text(text) => Ok(text.clone()),
        _ => Err(ApiError::invalid(
            "input",
            "the provider accepts only texts, but an input is a list of tokens",
        )),
    };
    let texts: Vec<String> = request.inputs.iter().map(text).collect::<Result<_, _>>()?;
    if family == Family::TitanFirst && request.dimensions.is_some() {
        return Err(ApiError::invalid("dimensions", format!("'{model}' has vectors of one length")));
    }
    let titan = |text: &String| {
        let mut body = Map::from_iter([("inputText".to_string(), Value::from(text.as_str()))]);
        if let Some(n) = request.dimensions {
            body.insert("dimensions".into(), n.into());
        }
        body
    };
    let cohere = |texts: &[String]| {
        let kind = request.extra.get("input_type").and_then(Value::as_str).unwrap_or("search_document");
        let truncate = if request.truncate { "END" } else { "NONE" };
        let body =
            json!({"texts": texts, "input_type": kind, "truncate": truncate, "embedding_types": ["float"]});
        let Value::Object(mut body) = body else { return Map::new() };
        if let Some(n) = request.dimensions {
            body.insert("output_dimension".into(), n.into());
        }
        body
    };
    Ok(match family {
        Family::TitanFirst | Family::Titan => texts.iter().map(titan).collect(),
        Family::Cohere => texts.chunks(COHERE_TEXTS_MAX).map(cohere).collect(),
    })
}

/// Parses the vectors of one answer. `tokens` is the header `x-amzn-bedrock-input-token-count`.
///
/// # Errors
/// A body that is not an answer.
pub fn read(body: &[u8], tokens: Option<u64>) -> Result<Embeddings, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire {
        #[serde(default)]
        embedding: Option<Vec<f32>>,
        #[serde(default)]
        embeddings: Option<Vectors>,
        #[serde(default)]
        input_text_token_count: Option<u64>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Vectors {
        Plain(Vec<Vec<f32>>),
        Typed { float: Vec<Vec<f32>> },
    }
    let wire: Wire = reader::read(body)?;
    let vectors = match (wire.embedding, wire.embeddings) {
        (Some(one), _) => vec![one],
        (None, Some(Vectors::Plain(all) | Vectors::Typed { float: all })) => all,
        (None, None) => return Err(ApiError::upstream("the provider's answer has no embeddings")),
    };
    let prompt_tokens = tokens.or(wire.input_text_token_count).unwrap_or(0);
    Ok(Embeddings { vectors, prompt_tokens, ..Embeddings::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::embeddings;

    fn request(n: usize, more: Value) -> EmbedRequest {
        let mut body = json!({"model": "m", "input": vec!["a"; n]});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        embeddings::parse(body.to_string().as_bytes()).expect("a request")
    }

    #[test]
    fn each_family_has_its_form() {
        let titan =
            bodies(&request(2, json!({"dimensions": 512})), "amazon.titan-embed-text-v2:0").expect("texts");
        assert_eq!(
            Value::from(titan),
            json!([{"inputText": "a", "dimensions": 512}, {"inputText": "a", "dimensions": 512}])
        );
        let cohere = bodies(&request(100, json!({"input_type": "search_query"})), "eu.cohere.embed-v4:0")
            .expect("texts");
        assert_eq!((cohere.len(), cohere[1]["texts"].as_array().map(Vec::len)), (2, Some(4)));
        assert_eq!(
            (&cohere[0]["input_type"], &cohere[0]["truncate"]),
            (&json!("search_query"), &json!("NONE"))
        );
        for (request, model, expected) in [
            (request(1, json!({"dimensions": 3})), "amazon.titan-embed-text-v1", "one length"),
            (request(1, json!({})), "amazon.nova-lite-v1:0", "not supported"),
        ] {
            assert!(bodies(&request, model).expect_err("refused").message.contains(expected));
        }
    }

    #[test]
    fn each_form_of_an_answer_is_read() {
        let titan = read(br#"{"embedding":[1.0,2.0],"inputTextTokenCount":3,"embeddingsByType":{}}"#, None)
            .expect("vectors");
        assert_eq!((titan.vectors, titan.prompt_tokens), (vec![vec![1.0, 2.0]], 3));
        for body in [
            r#"{"id":"x","texts":["a"],"embeddings":[[1.0]],"response_type":"embeddings_floats"}"#,
            r#"{"id":"x","texts":["a"],"embeddings":{"float":[[1.0]]},"response_type":"embeddings_by_type"}"#,
        ] {
            let cohere = read(body.as_bytes(), Some(7)).expect("vectors");
            assert_eq!((cohere.vectors, cohere.prompt_tokens), (vec![vec![1.0]], 7));
        }
        assert!(read(b"{}", None).is_err());
    }
}
