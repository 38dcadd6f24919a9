//! Ollama's Modelfile as a local model.

use super::llama_swap::quote;
use super::{Imported, with_notes};
use crate::{Problem, Problems, Span};

/// Parameters with the same meaning here, and their names.
const PARAMETERS: &[(&str, &str)] = &[
    ("num_ctx", "ctx_size"),
    ("num_thread", "threads"),
    ("num_batch", "ubatch_size"),
    ("num_predict", "max_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
];

/// Translates it.
pub(super) fn import(file: &str, text: &str, name: &str) -> Result<Imported, Problems> {
    let wrong = |line: usize, text: String| {
        let span = Span { file: file.into(), line: line as u32, column: 1 };
        Problems(vec![Problem { span, text }])
    };
    if text.len() > crate::yaml::FILE_BYTES_MAX {
        return Err(wrong(1, "the file is too long".into()));
    }
    let mut notes = Vec::new();
    let mut model = None;
    let mut params: Vec<(&str, String)> = Vec::new();
    let mut stops = Vec::new();
    for (line, word, value) in instructions(text).map_err(|(line, why)| wrong(line, why))? {
        let value = value.as_str();
        match word.as_str() {
            "FROM" if model.is_some() => return Err(wrong(line, "a second FROM: only one is allowed".into())),
            "FROM" => model = Some(source_of(value)),
            "PARAMETER" => {
                let (key, value) = value.split_once(char::is_whitespace).ok_or_else(|| wrong(line, "PARAMETER needs a name and a value".into()))?;
                let value = unquoted(value.trim());
                let ours = PARAMETERS.iter().find(|(theirs, _)| *theirs == key).map(|(_, ours)| *ours);
                match (key, ours) {
                    ("stop", _) => stops.push(quote(value)),
                    ("num_predict", _) if value.starts_with('-') => {} // as long as it takes: so it is here
                    (_, Some(ours)) => {
                        let number: f64 = value.parse().map_err(|_| wrong(line, format!("PARAMETER {key} is not a number")))?;
                        if !number.is_finite() {
                            return Err(wrong(line, format!("PARAMETER {key} is not a number")));
                        }
                        params.retain(|(known, _)| *known != ours);
                        params.push((ours, value.trim_start_matches('+').to_string()));
                    }
                    _ => notes.push(format!("line {line}: PARAMETER {key} has no counterpart and was left out")),
                }
            }
            "TEMPLATE" => notes.push(format!(
                "line {line}: TEMPLATE is in Go's notation and was left out: the model's own template is used, or a Jinja file that chat_template names"
            )),
            "SYSTEM" => notes.push(format!(
                "line {line}: SYSTEM was left out: send it as the first message, or put it into a chat_template"
            )),
            "MESSAGE" => notes.push(format!("line {line}: MESSAGE was left out: send it with the conversation")),
            "ADAPTER" => notes.push(format!("TO DO, line {line}: ADAPTER was left out: merge it into the model first")),
            "RENDERER" | "PARSER" => notes.push(format!(
                "line {line}: {word} was left out: prompts and answers have the form of the model's own template"
            )),
            "LICENSE" | "REQUIRES" => {}
            other => return Err(wrong(line, format!("{} is not an instruction of a Modelfile", crate::problem::quoted(other)))),
        }
    }
    let model = model.ok_or_else(|| wrong(1, "FROM is missing".into()))?;
    let mut out = format!("model_list:\n  - model_name: {}\n    litellm_params:\n", quote(name));
    out += &format!("      model: {}\n", quote(&format!("octet/{model}")));
    for (key, value) in params {
        out += &format!("      {key}: {value}\n");
    }
    if !stops.is_empty() {
        out += &format!("      stop: [{}]\n", stops.join(", "));
    }
    Ok(with_notes("a Modelfile", notes, &out))
}

/// `hf.co/user/repo:QUANT` becomes `hf:user/repo:QUANT`; names and paths stay.
fn source_of(text: &str) -> String {
    let text = unquoted(text);
    let hub = ["https://hf.co/", "https://huggingface.co/", "hf.co/", "huggingface.co/"];
    hub.iter().find_map(|h| text.strip_prefix(h)).map_or(text.to_string(), |rest| format!("hf:{rest}"))
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text)
}

type Instruction = (usize, String, String);

/// Lines of a keyword and a value; `"""` continues to the next `"""`.
fn instructions(text: &str) -> Result<Vec<Instruction>, (usize, String)> {
    const FENCE: &str = "\"\"\"";
    let mut out = Vec::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    while let Some((n, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let mut value = value.trim().to_string();
        if let Some(start) = value.find(FENCE) {
            let mut rest = value[start + FENCE.len()..].to_string();
            while !rest.contains(FENCE) {
                let Some((_, more)) = lines.next() else {
                    return Err((n + 1, "the text that begins with \"\"\" does not end".into()));
                };
                rest.push('\n');
                rest += more;
            }
            let end = rest.find(FENCE).unwrap_or(rest.len());
            value = format!("{}{}", &value[..start], &rest[..end]);
        }
        out.push((n + 1, word.to_uppercase(), value));
    }
    Ok(out)
}
