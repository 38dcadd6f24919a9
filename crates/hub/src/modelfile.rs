//! What Ollama keeps with a model's weights, as a Modelfile says it: `SYSTEM`, `MESSAGE`, `PARAMETER`, `TEMPLATE`. Each is a layer of the
//! model's manifest, in a file of its own.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Longest layer.
const LAYER_BYTES_MAX: u64 = 1 << 20;
const SYSTEM: &str = "application/vnd.ollama.image.system";
const MESSAGES: &str = "application/vnd.ollama.image.messages";
const PARAMETERS: &str = "application/vnd.ollama.image.params";
const TEMPLATE: &str = "application/vnd.ollama.image.template";
const ADAPTER: &str = "application/vnd.ollama.image.adapter";

/// The files of these layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layers {
    system: Option<PathBuf>,
    messages: Option<PathBuf>,
    parameters: Option<PathBuf>,
    template: Option<PathBuf>,
    adapter: Option<PathBuf>,
}

/// What is in them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Modelfile {
    /// The system message of conversations that do not begin with one.
    pub system: Option<String>,
    /// Role and text of the messages that every conversation begins with.
    pub messages: Vec<(String, String)>,
    /// Settings by name: sampling, context, texts that end an answer.
    pub parameters: Map<String, Value>,
    /// The chat template, in the language of Go's templates.
    pub template: Option<String>,
    /// There is a LoRA adapter.
    pub has_adapter: bool,
}

impl Layers {
    /// The layers of a manifest. `blob` finds a layer's file.
    ///
    /// # Errors
    /// Those of `blob`.
    pub(crate) fn of<E>(layers: &[Value], blob: impl Fn(&Value) -> Result<PathBuf, E>) -> Result<Self, E> {
        let file = |kind: &str| layers.iter().find(|l| l["mediaType"] == kind).map(&blob).transpose();
        Ok(Self {
            system: file(SYSTEM)?,
            messages: file(MESSAGES)?,
            parameters: file(PARAMETERS)?,
            template: file(TEMPLATE)?,
            adapter: file(ADAPTER)?,
        })
    }

    /// Reads them. The second part says what cannot be read: it is missing in the first.
    pub fn read(&self) -> (Modelfile, Vec<String>) {
        let mut wrong = Vec::new();
        let mut text = |path: &Option<PathBuf>, what: &str| {
            let path = path.as_ref()?;
            let text = read(path, LAYER_BYTES_MAX);
            text.map_err(|why| wrong.push(format!("its {what} {why} ({})", path.display()))).ok()
        };
        let system = text(&self.system, "system message");
        let (messages, parameters) = (text(&self.messages, "messages"), text(&self.parameters, "parameters"));
        let template = text(&self.template, "template");
        let messages = messages.map(|text| parse_messages(&text)).transpose();
        let parameters = parameters.map(|text| parse_parameters(&text)).transpose();
        let out = Modelfile {
            system: system.filter(|text| !text.trim().is_empty()),
            messages: messages
                .unwrap_or_else(|why| {
                    wrong.push(why);
                    None
                })
                .unwrap_or_default(),
            parameters: parameters
                .unwrap_or_else(|why| {
                    wrong.push(why);
                    None
                })
                .unwrap_or_default(),
            template,
            has_adapter: self.adapter.is_some(),
        };
        (out, wrong)
    }
}

fn parse_messages(text: &str) -> Result<Vec<(String, String)>, String> {
    let wrong = || "its messages are no list of roles and texts".to_string();
    let all: Vec<Value> = serde_json::from_str(text).map_err(|_| wrong())?;
    let one = |m: &Value| {
        let role = m["role"].as_str().filter(|role| ["system", "user", "assistant"].contains(role));
        role.zip(m["content"].as_str())
            .map(|(role, text)| (role.to_string(), text.to_string()))
            .ok_or_else(wrong)
    };
    all.iter().map(one).collect()
}

fn parse_parameters(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("its parameters are no JSON object: {e}"))
}

/// A file's text, of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<String, String> {
    let unread = |e: std::io::Error| format!("cannot be read: {e}");
    let about = std::fs::metadata(path).map_err(unread)?;
    if !about.is_file() || about.len() > most {
        return Err(format!("is no text of at most {most} bytes"));
    }
    std::fs::read_to_string(path).map_err(unread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The layers of a manifest whose blobs are in `folder`, by kind.
    fn layers(folder: &Path, all: &[(&str, &str)]) -> Layers {
        let list: Vec<Value> =
            all.iter().map(|(kind, _)| json!({"mediaType": kind, "digest": kind})).collect();
        let file = |kind: &str| folder.join(kind.rsplit('.').next().unwrap());
        for (kind, text) in all {
            std::fs::write(file(kind), text).unwrap();
        }
        Layers::of(&list, |l| Ok::<_, ()>(file(l["mediaType"].as_str().unwrap()))).unwrap()
    }

    #[test]
    fn what_a_modelfile_says_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let all = layers(
            folder.path(),
            &[
                (SYSTEM, "You are Mario."),
                (
                    MESSAGES,
                    r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It's me!"}]"#,
                ),
                (PARAMETERS, r#"{"stop": ["<|end|>"], "temperature": 0.6, "num_ctx": 4096}"#),
                (TEMPLATE, "{{ .Prompt }}"),
            ],
        );
        let (read, wrong) = all.read();
        assert_eq!(wrong, [""; 0]);
        assert_eq!(read.system.as_deref(), Some("You are Mario."));
        assert_eq!(read.messages, [("user".into(), "Hi".into()), ("assistant".into(), "It's me!".into())]);
        assert_eq!(
            Value::Object(read.parameters),
            json!({"stop": ["<|end|>"], "temperature": 0.6, "num_ctx": 4096})
        );
        assert_eq!((read.template.as_deref(), read.has_adapter), (Some("{{ .Prompt }}"), false));
    }

    #[test]
    fn what_cannot_be_read_is_said_and_the_rest_counts() {
        let folder = tempfile::tempdir().unwrap();
        let all = layers(
            folder.path(),
            &[
                (SYSTEM, "x"),
                (MESSAGES, r#"[{"role": "boss", "content": ""}]"#),
                (PARAMETERS, "[1]"),
                (ADAPTER, ""),
            ],
        );
        std::fs::remove_file(folder.path().join("system")).unwrap();
        let (read, wrong) = all.read();
        assert_eq!(read, Modelfile { has_adapter: true, ..Modelfile::default() });
        for (said, part) in
            wrong.iter().zip(["its system message cannot be read", "its messages", "its parameters"])
        {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(wrong.len(), 3);
    }
}
