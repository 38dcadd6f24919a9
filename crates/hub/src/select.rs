//! Selects the files of a model in a repository. Used before a download and for files on disk, so that both agree.

use std::collections::BTreeMap;

use crate::reference::Select;

/// The files of one model, as paths in the repository, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// One GGUF, or all parts of a split one.
    Gguf(Vec<String>),
    /// A Hugging Face directory: safetensors, configuration, tokenizer. `config.json` is last: if it is present, everything is.
    Directory(Vec<String>),
}

impl Chosen {
    pub fn files(&self) -> &[String] {
        match self {
            Self::Gguf(files) | Self::Directory(files) => files,
        }
    }
}

/// One GGUF model of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gguf {
    /// `Q4_K_M`, `UD-Q4_K_XL`, `BF16`; the file's name if it contains none.
    pub label: String,
    /// All parts, in order.
    pub files: Vec<String>,
    /// Number of parts according to the names.
    pub parts: usize,
}

/// The default choice, best first: about 4 bits, then the next larger, then the smaller ones.
const PREFERRED: [&str; 14] = [
    "Q4_K_M",
    "UD-Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_L",
    "Q4_K_S",
    "IQ4_XS",
    "IQ4_NL",
    "Q4_1",
    "Q4_0",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
];

/// Selects the files of a model from a listing. The error lists the alternatives.
pub(crate) fn choose(files: &[String], select: &Select) -> Result<Chosen, String> {
    let models = ggufs(files);
    let available = || {
        let labels: Vec<&str> = models.iter().map(|m| m.label.as_str()).collect();
        if labels.is_empty() {
            "there is no GGUF file".to_string()
        } else {
            format!("there are {}", labels.join(", "))
        }
    };
    if models.is_empty() && *select == Select::Default {
        return directory(files);
    }
    let found = matching(&models, select);
    match found.as_slice() {
        [model] if model.files.len() == model.parts => Ok(Chosen::Gguf(model.files.clone())),
        [model] => Err(format!("{} has {} of {} parts only", model.files[0], model.files.len(), model.parts)),
        [] => Err(match select {
            Select::File(name) => format!("no file {name}; {}", available()),
            Select::Quant(quant) => format!("no quantisation {quant}; {}", available()),
            Select::Default => format!("name a quantisation; {}", available()),
        }),
        several => {
            let names: Vec<&str> = several.iter().map(|m| m.files[0].as_str()).collect();
            Err(format!("several files fit; name one of {}", names.join(", ")))
        }
    }
}

/// The models of a listing that match `select`, complete or not.
pub(crate) fn matching<'a>(models: &'a [Gguf], select: &Select) -> Vec<&'a Gguf> {
    match select {
        Select::File(name) => models.iter().filter(|m| m.files.contains(name)).collect(),
        Select::Quant(quant) => by_quant(models, quant),
        Select::Default => match models {
            [only] => vec![only],
            _ => PREFERRED.iter().map(|q| labelled(models, q)).find(|f| !f.is_empty()).unwrap_or_default(),
        },
    }
}

/// Every GGUF model of a listing: parts joined, other files (projectors, importance matrices) left out.
pub(crate) fn ggufs(files: &[String]) -> Vec<Gguf> {
    let mut models: BTreeMap<(String, usize), Vec<String>> = BTreeMap::new();
    for file in files {
        let base = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
        if !base.ends_with(".gguf") || base.contains("mmproj") || base.contains("imatrix") {
            continue;
        }
        let stem = &file[..file.len() - ".gguf".len()];
        let (stem, parts) = split_suffix(stem).map_or((stem, 1), |(stem, _, parts)| (stem, parts));
        models.entry((stem.to_string(), parts)).or_default().push(file.clone());
    }
    models
        .into_iter()
        .map(|((stem, parts), mut files)| {
            files.sort();
            let (folder, base) = stem.rsplit_once('/').unwrap_or(("", &stem));
            let label = label(base).or_else(|| label(folder.rsplit('/').next().unwrap_or(folder)));
            Gguf { label: label.unwrap_or_else(|| base.to_string()), files, parts }
        })
        .collect()
}

/// Whether a file is a projector, which reads images for a model: llama.cpp's `mmproj-*.gguf`.
pub fn is_projector(file: &str) -> bool {
    let base = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    base.ends_with(".gguf") && base.contains("mmproj")
}

/// The order in which projectors are preferred: half precision, full precision, then quantised ones.
pub fn projector_rank(file: &str) -> usize {
    let label = file.rsplit('/').next().and_then(|base| label(base.trim_end_matches(".gguf")));
    let order = ["F16", "FP16", "BF16", "F32", "FP32", "Q8_0"];
    order
        .iter()
        .position(|o| label.as_deref().is_some_and(|l| l.eq_ignore_ascii_case(o)))
        .unwrap_or(order.len())
}

/// The projector of a listing that belongs to a model: in the folder of its file, or at the top.
pub(crate) fn projector(files: &[String], model: &str) -> Option<String> {
    let folder = |file: &str| file.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
    let near = |file: &&String| is_projector(file) && [folder(model), String::new()].contains(&folder(file));
    let rank = |file: &&String| (folder(file) != folder(model), projector_rank(file), (*file).clone());
    files.iter().filter(near).min_by_key(rank).cloned()
}

/// `model-00002-of-00003` as (`model`, 2, 3).
pub(crate) fn split_suffix(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, parts) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |s: &str| if s.len() == 5 { s.parse::<usize>().ok() } else { None };
    let (part, parts) = (number(part)?, number(parts)?);
    (part >= 1 && part <= parts).then_some((name, part, parts))
}

/// The quantisation at the end of a file's name, as written there.
fn label(base: &str) -> Option<String> {
    let words: Vec<&str> = base.split(['-', '.']).collect();
    let at = words.iter().rposition(|w| is_quant(w))?;
    let dynamic = at > 0 && words[at - 1].eq_ignore_ascii_case("UD");
    Some(if dynamic { format!("{}-{}", words[at - 1], words[at]) } else { words[at].to_string() })
}

fn is_quant(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    if matches!(word.as_str(), "BF16" | "F16" | "FP16" | "F32" | "FP32") {
        return true;
    }
    if word.starts_with("MXFP4") || word.starts_with("NVFP4") {
        return true;
    }
    let Some(rest) = ["IQ", "TQ", "Q"].iter().find_map(|p| word.strip_prefix(p)) else { return false };
    let mut chars = rest.chars();
    chars.next().is_some_and(|c| c.is_ascii_digit()) && chars.next().is_none_or(|c| c == '_')
}

fn labelled<'a>(models: &'a [Gguf], label: &str) -> Vec<&'a Gguf> {
    models.iter().filter(|m| m.label.eq_ignore_ascii_case(label)).collect()
}

/// The exact label; else the publisher's dynamic variant (`UD-`); else any name that ends with it.
fn by_quant<'a>(models: &'a [Gguf], quant: &str) -> Vec<&'a Gguf> {
    let quant = quant.to_ascii_lowercase();
    let ends_in = |m: &&Gguf| {
        let stem = m.files[0].to_ascii_lowercase();
        let stem = stem.trim_end_matches(".gguf");
        let stem = split_suffix(stem).map_or(stem, |(stem, ..)| stem);
        stem.strip_suffix(&quant).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_', '/']))
    };
    [
        labelled(models, &quant),
        labelled(models, &format!("UD-{quant}")),
        models.iter().filter(ends_in).collect(),
    ]
    .into_iter()
    .find(|found| !found.is_empty())
    .unwrap_or_default()
}

/// Files of a model directory besides the weights. All except `config.json` are optional.
const DIRECTORY_FILES: [&str; 27] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    // How an embedding model pools, and what is behind that.
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
    "LICENSE",
    "model.safetensors.index.json",
    // How the weights are quantised, by several tools.
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
];

fn directory(files: &[String]) -> Result<Chosen, String> {
    let has = |name: &str| files.iter().any(|f| f == name);
    let mut weights: Vec<String> =
        files.iter().filter(|f| f.ends_with(".safetensors") && !f.contains('/')).cloned().collect();
    // Some publishers include the same weights twice, under usual and other names.
    if weights.iter().any(|f| f.starts_with("model")) {
        weights.retain(|f| f.starts_with("model") || f == "mtp.safetensors");
    }
    weights.sort();
    if weights.is_empty() || !has("config.json") {
        return Err("has neither a GGUF file nor safetensors with a config.json".into());
    }
    let mut chosen: Vec<String> =
        DIRECTORY_FILES.iter().filter(|f| has(f)).map(|f| f.to_string()).chain(weights).collect();
    chosen.push("config.json".into());
    Ok(Chosen::Directory(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| s.to_string()).collect()
    }

    /// The listing of a large publisher's repository, shortened.
    fn repo() -> Vec<String> {
        names(&[
            ".gitattributes",
            "README.md",
            "BF16/Qwen3.6-35B-A3B-BF16-00001-of-00002.gguf",
            "BF16/Qwen3.6-35B-A3B-BF16-00002-of-00002.gguf",
            "Qwen3.6-35B-A3B-MXFP4_MOE.gguf",
            "Qwen3.6-35B-A3B-Q8_0.gguf",
            "Qwen3.6-35B-A3B-UD-IQ2_XXS.gguf",
            "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf",
            "Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf",
            "imatrix_unsloth.gguf_file",
            "imatrix_unsloth.gguf",
            "mmproj-BF16.gguf",
        ])
    }

    #[test]
    fn a_quantisation_is_found_however_it_is_written() {
        for (quant, file) in [
            ("q8_0", "Qwen3.6-35B-A3B-Q8_0.gguf"),
            ("Q4_K_M", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
            ("ud-q4_k_xl", "Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf"),
            ("MXFP4_MOE", "Qwen3.6-35B-A3B-MXFP4_MOE.gguf"),
        ] {
            let chosen = choose(&repo(), &Select::Quant(quant.into())).unwrap();
            assert_eq!(chosen, Chosen::Gguf(names(&[file])), "{quant}");
        }
        let split = choose(&repo(), &Select::Quant("bf16".into())).unwrap();
        assert_eq!(split.files().len(), 2);
        let file = "BF16/Qwen3.6-35B-A3B-BF16-00002-of-00002.gguf";
        assert_eq!(choose(&repo(), &Select::File(file.into())).unwrap(), split);
        assert_eq!(choose(&repo(), &Select::Default).unwrap().files(), ["Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"]);
        // The plain one wins over the dynamic one; other ways to write names.
        let both =
            names(&["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf", "m_q5_k_m.gguf", "q6_k/m-00001-of-00001.gguf"]);
        assert_eq!(choose(&both, &Select::Quant("Q4_K_M".into())).unwrap().files(), ["m-Q4_K_M.gguf"]);
        assert_eq!(choose(&both, &Select::Quant("Q5_K_M".into())).unwrap().files(), ["m_q5_k_m.gguf"]);
        assert_eq!(
            choose(&both, &Select::Quant("Q6_K".into())).unwrap().files(),
            ["q6_k/m-00001-of-00001.gguf"]
        );
    }

    #[test]
    fn errors_list_what_there_is() {
        for (files, select, part) in [
            (repo(), Select::Quant("Q4_K".into()), "there are BF16, MXFP4_MOE, Q8_0, UD-IQ2_XXS"),
            (repo(), Select::File("x.gguf".into()), "no file x.gguf; there are"),
            (names(&["README.md"]), Select::Quant("Q4_0".into()), "there is no GGUF file"),
            (names(&["README.md"]), Select::Default, "neither"),
            (names(&["a-IQ1_S.gguf", "a-IQ1_M.gguf"]), Select::Default, "name a quantisation; there are"),
            (names(&["a-Q4_0.gguf", "b-Q4_0.gguf"]), Select::Quant("Q4_0".into()), "several files fit"),
            (names(&["a-Q4_0-00002-of-00003.gguf"]), Select::Default, "1 of 3 parts"),
        ] {
            let e = choose(&files, &select).unwrap_err();
            assert!(e.contains(part), "{e}");
        }
    }

    #[test]
    fn a_directory_has_its_weights_and_config_last() {
        let files = names(&[
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.safetensors",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "modules.json",
            "preprocessor_config.json",
            "processor_config.json",
            "tekken.json",
            "tiktoken.model",
            "tokenizer.json",
            "video_preprocessor_config.json",
        ]);
        assert_eq!(
            choose(&files, &Select::Default).unwrap(),
            Chosen::Directory(names(&[
                "tokenizer.json",
                "tekken.json",
                "tiktoken.model",
                "preprocessor_config.json",
                "video_preprocessor_config.json",
                "processor_config.json",
                "modules.json",
                "2_Dense/config.json",
                "2_Dense/model.safetensors",
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "config.json",
            ]))
        );
    }

    #[test]
    fn a_projector_lies_beside_its_model() {
        let files = names(&[
            "a-Q4_0.gguf",
            "mmproj-F32.gguf",
            "mmproj-a-BF16.gguf",
            "b/c.gguf",
            "b/mmproj-Q8_0.gguf",
        ]);
        assert_eq!(projector(&files, "a-Q4_0.gguf").as_deref(), Some("mmproj-a-BF16.gguf"));
        assert_eq!(projector(&files, "b/c.gguf").as_deref(), Some("b/mmproj-Q8_0.gguf"));
        assert_eq!(projector(&files, "d/c.gguf").as_deref(), Some("mmproj-a-BF16.gguf"));
        assert_eq!(projector(&repo(), "Qwen3.6-35B-A3B-Q8_0.gguf").as_deref(), Some("mmproj-BF16.gguf"));
        assert_eq!(projector(&files[..1], "a-Q4_0.gguf"), None);
        assert!(!is_projector("model.gguf") && !is_projector("mmproj.txt"));
    }

    #[test]
    fn names_without_a_quantisation_are_left_as_they_are() {
        let models = ggufs(&names(&["Qwen3-tiny.gguf", "smollm2-135m-instruct.Q4_1.gguf"]));
        let labels: Vec<&str> = models.iter().map(|m| m.label.as_str()).collect();
        assert_eq!(labels, ["Qwen3-tiny", "Q4_1"]);
        assert_eq!(split_suffix("a-00004-of-00003"), None);
    }
}
