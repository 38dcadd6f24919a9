//! The tokens around a text or a pair of texts: `[CLS] text [SEP]`. They are what an embedding model or a reranker reads, and the first
//! ones are what a document begins with. From the post-processor of a tokenizer.json or GGUF's flags; kept by [`super::Tokenizer`].

use serde_json::Value;

/// The input of an encoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The segment of each token: 0, or 1 for the second text in models that tell them apart.
    pub segments: Vec<u8>,
}

/// A part of a frame, with its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Token(u32, u8),
    First(u8),
    Second(u8),
}

/// The frames of one text and of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frames {
    pub single: Vec<Part>,
    pub pair: Vec<Part>,
}

/// GGUF's description: single tokens and whether they are put.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ends {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub sep: Option<u32>,
    /// The second text has segment 1.
    pub segments: bool,
}

impl Frames {
    /// BOS, text, EOS; between two texts also the separator.
    pub(super) fn of_ends(ends: Ends) -> Self {
        let token = |id: Option<u32>, segment| id.map(|id| Part::Token(id, segment));
        let second = u8::from(ends.segments);
        let end = ends.eos.or(ends.sep);
        let between = if ends.eos.is_some() { ends.sep } else { None };
        let single = [token(ends.bos, 0), Some(Part::First(0)), token(end, 0)];
        let pair = [
            token(ends.bos, 0),
            Some(Part::First(0)),
            token(end, 0),
            token(between, 0),
            Some(Part::Second(second)),
            token(end, second),
        ];
        Self { single: single.into_iter().flatten().collect(), pair: pair.into_iter().flatten().collect() }
    }

    /// The frames of a post-processor; `None` if it puts no tokens.
    pub(super) fn of_post_processor(post: &Value) -> Result<Option<Self>, String> {
        match post["type"].as_str().unwrap_or("") {
            "Sequence" => {
                for post in post["processors"].as_array().into_iter().flatten() {
                    if let Some(frames) = Self::of_post_processor(post)? {
                        return Ok(Some(frames));
                    }
                }
                Ok(None)
            }
            "TemplateProcessing" => {
                let single = template(&post["single"], &post["special_tokens"])?;
                let pair = match template(&post["pair"], &post["special_tokens"])? {
                    // Files for one text only.
                    pair if pair.is_empty() => single.iter().copied().chain([Part::Second(1)]).collect(),
                    pair => pair,
                };
                Ok(Some(Self { single, pair }))
            }
            kind @ ("BertProcessing" | "RobertaProcessing") => {
                let id = |field: &str| {
                    let id = post[field].get(1).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
                    id.ok_or_else(|| format!("has a post_processor '{kind}' without the token '{field}'"))
                };
                let (cls, sep) = (Some(id("cls")?), id("sep")?);
                let bert = kind == "BertProcessing";
                Ok(Some(Self::of_ends(Ends {
                    bos: cls,
                    eos: (!bert).then_some(sep),
                    sep: Some(sep),
                    segments: bert,
                })))
            }
            "" | "ByteLevel" => Ok(None),
            other => Err(format!("has a post_processor '{other}' that is not supported")),
        }
    }

    /// Every token of the frames.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.single.iter().chain(&self.pair).filter_map(|p| match p {
            Part::Token(id, _) => Some(*id),
            _ => None,
        })
    }

    /// The tokens before a single text.
    pub(super) fn prefix(&self) -> Vec<u32> {
        let token = |p: &Part| match p {
            Part::Token(id, _) => Some(*id),
            _ => None,
        };
        self.single.iter().map_while(token).collect()
    }

    /// Joins as much of a text as fits into `tokens_max` with its frame.
    pub(super) fn join_cut(&self, text: &[u32], tokens_max: usize) -> Input {
        let frame = self.join(&[], None).tokens.len();
        self.join(&text[..text.len().min(tokens_max.saturating_sub(frame))], None)
    }

    /// Joins one text or two.
    pub(super) fn join(&self, first: &[u32], second: Option<&[u32]>) -> Input {
        let mut out = Input::default();
        let parts = if second.is_some() { &self.pair } else { &self.single };
        for part in parts {
            let (ids, segment) = match part {
                Part::Token(id, segment) => (std::slice::from_ref(id), *segment),
                Part::First(segment) => (first, *segment),
                Part::Second(segment) => (second.unwrap_or_default(), *segment),
            };
            out.tokens.extend_from_slice(ids);
            out.segments.resize(out.tokens.len(), segment);
        }
        out
    }
}

/// One form of `TemplateProcessing`.
fn template(list: &Value, special: &Value) -> Result<Vec<Part>, String> {
    let mut out = Vec::new();
    for part in list.as_array().into_iter().flatten() {
        let bad = || format!("has a post_processor with the part {part}, which is not known");
        let (kind, v) = part.as_object().and_then(|o| o.iter().next()).ok_or_else(bad)?;
        let segment = v["type_id"].as_u64().and_then(|n| u8::try_from(n).ok()).unwrap_or(0);
        match (kind.as_str(), v["id"].as_str()) {
            ("Sequence", Some("A")) => out.push(Part::First(segment)),
            ("Sequence", Some("B")) => out.push(Part::Second(segment)),
            ("SpecialToken", Some(name)) => {
                let ids = special[name]["ids"].as_array().ok_or_else(bad)?;
                for id in ids {
                    let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(bad)?;
                    out.push(Part::Token(id, segment));
                }
            }
            _ => return Err(bad()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn joined(post: Value) -> (Vec<u32>, Vec<u32>, Vec<u8>) {
        let f = Frames::of_post_processor(&post).unwrap().unwrap();
        let pair = f.join(&[7, 8], Some(&[9]));
        (f.join(&[7, 8], None).tokens, pair.tokens, pair.segments)
    }

    /// The library's own results for these post-processors.
    #[test]
    fn known_post_processors() {
        let bert = json!({"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]});
        assert_eq!(joined(bert), (vec![1, 7, 8, 2], vec![1, 7, 8, 2, 9, 2], vec![0, 0, 0, 0, 1, 1]));
        let roberta = json!({"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]});
        assert_eq!(joined(roberta), (vec![1, 7, 8, 2], vec![1, 7, 8, 2, 2, 9, 2], vec![0; 7]));
        let template = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "g", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "g", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"g": {"id": "g", "ids": [3, 4], "tokens": ["[gMASK]", "<sop>"]}}}]});
        assert_eq!(joined(template), (vec![3, 4, 7, 8], vec![3, 4, 7, 8, 9], vec![0, 0, 0, 0, 1]));
        assert_eq!(Frames::of_post_processor(&json!({"type": "ByteLevel"})), Ok(None));
        assert_eq!(Frames::of_post_processor(&Value::Null), Ok(None));
        assert!(Frames::of_post_processor(&json!({"type": "New"})).unwrap_err().contains("'New'"));
    }

    #[test]
    fn ends_of_gguf() {
        let ends = Ends { bos: Some(1), eos: Some(2), ..Ends::default() };
        assert_eq!(Frames::of_ends(ends).join(&[7], None).tokens, [1, 7, 2]);
        assert_eq!(Frames::of_ends(Ends::default()).join(&[7], Some(&[8])).tokens, [7, 8]);
        assert_eq!(Frames::of_ends(ends).prefix(), [1]);
        let cut = |max| Frames::of_ends(ends).join_cut(&[7, 8, 9], max).tokens;
        assert_eq!((cut(9), cut(5), cut(4)), (vec![1, 7, 8, 9, 2], vec![1, 7, 8, 9, 2], vec![1, 7, 8, 2]));
        assert_eq!((cut(2), cut(0)), (vec![1, 2], vec![1, 2]));
    }
}
