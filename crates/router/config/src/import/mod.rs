//! Translates other programs' files: LiteLLM's config.yaml, llama-swap's, Ollama's Modelfile.

mod lines;
mod litellm;
mod llama_swap;
mod modelfile;

use crate::Problems;
use crate::source::Source;

/// A translated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// YAML, to be saved beside the original file: paths are relative to its folder.
    pub yaml: String,
    /// What was dropped or needs attention; also at the top of `yaml`.
    pub notes: Vec<String>,
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// LiteLLM's config.yaml.
    LiteLlm,
    /// llama-swap's config.yaml.
    LlamaSwap,
    /// Ollama's Modelfile.
    Modelfile,
}

impl Origin {
    /// Detects it by the file's name and text.
    pub fn guess(file: &str, text: &str) -> Self {
        let yaml = file.ends_with(".yaml") || file.ends_with(".yml");
        let from = |l: &str| l.trim_start().get(..5).is_some_and(|w| w.eq_ignore_ascii_case("from "));
        if !yaml && text.lines().any(from) {
            Self::Modelfile
        } else if text.lines().any(|l| l.starts_with("models:") || l.starts_with("healthCheckTimeout:")) {
            Self::LlamaSwap
        } else {
            Self::LiteLlm
        }
    }
}

/// Translates the text of `file`. `name` is the model's name for clients if the file has none (a Modelfile).
pub fn import(
    origin: Origin,
    file: &str,
    text: &str,
    name: &str,
    source: &dyn Source,
) -> Result<Imported, Problems> {
    match origin {
        Origin::LiteLlm => litellm::import(file, text, source),
        Origin::LlamaSwap => llama_swap::import(file, text, source),
        Origin::Modelfile => modelfile::import(file, text, name),
    }
}

/// Notes as comments at the top of a file.
fn with_notes(made_of: &str, notes: Vec<String>, yaml: &str) -> Imported {
    let mut out = format!("# Created from {made_of} by `octet config import`.\n");
    for note in &notes {
        for line in note.lines() {
            out += &format!("#   {line}\n");
        }
    }
    out += yaml;
    Imported { yaml: out, notes }
}
