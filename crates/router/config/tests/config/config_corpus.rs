//! A corpus of LiteLLM's files: between them they have every key that LiteLLM knows. Each is taken as it stands, but for what protects
//! and is not enforced here; and what an import makes of each is right.

use std::collections::BTreeSet;
use std::path::PathBuf;

use octet_config::import::{Origin, import};
use octet_config::*;
use serde_json::Value;

fn variable(name: &str) -> Option<String> {
    name.ends_with("_KEY").then(|| format!("key-of-{name}"))
}

/// The files: names, texts, and the keys in them that are not enforced, as their second line says.
fn files() -> Vec<(String, String, Vec<String>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/litellm");
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let ignored = text.lines().nth(1).and_then(|l| l.strip_prefix("# --ignore-unsupported "));
        let ignored = ignored.map_or(Vec::new(), |l| l.split(',').map(String::from).collect());
        out.push((path.file_name().unwrap().to_string_lossy().into_owned(), text, ignored));
    }
    assert!(out.len() > 5);
    out
}

#[test]
fn each_file_is_accepted_except_for_unsupported_protections() {
    for (name, text, ignored) in files() {
        let refused: BTreeSet<String> = match Config::parse(&name, &text, &Disk(variable)) {
            Ok(_) => BTreeSet::new(),
            Err(problems) => problems
                .0
                .iter()
                .map(|p| {
                    let (key, _) = p.text.split_once(" is not supported: ").unwrap_or_else(|| panic!("{p}"));
                    key.to_string()
                })
                .collect(),
        };
        assert_eq!(refused, ignored.iter().cloned().collect(), "{name}");
        let source = Ignoring { source: Disk(variable), keys: &ignored };
        let config = Config::parse(&name, &text, &source).unwrap_or_else(|e| panic!("{e}"));
        assert!(!config.deployments.is_empty() && !config.notes.is_empty(), "{name}");
    }
}

#[test]
fn what_an_import_makes_of_each_is_right() {
    for (name, text, _) in files() {
        let made =
            import(Origin::LiteLlm, &name, &text, "m", &Disk(variable)).unwrap_or_else(|e| panic!("{e}"));
        let config = Config::parse(&name, &made.yaml, &Disk(variable))
            .unwrap_or_else(|e| panic!("{name}: {e}\n{}", made.yaml));
        let unknown: Vec<&Note> = config.notes.iter().filter(|n| n.text.contains("unknown key")).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(made.yaml.contains("# octet: "), "{}", made.yaml);
    }
}

#[test]
fn between_them_they_have_every_key_of_litellms() {
    let mut have = BTreeSet::new();
    let mut add = |section: &str, value: &Value| {
        for name in value.as_object().into_iter().flat_map(|o| o.keys()) {
            have.insert((section.to_string(), name.clone()));
        }
    };
    for (name, text, _) in files().into_iter().filter(|(name, ..)| name != "forms.yaml") {
        let file: Value = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        add("the file", &file);
        for section in ["general_settings", "litellm_settings", "router_settings"] {
            add(section, &file[section]);
        }
        for policy in ["retry_policy", "allowed_fails_policy"] {
            add(policy, &file["router_settings"][policy]);
        }
        for entry in file["model_list"].as_array().into_iter().flatten() {
            add("litellm_params", &entry["litellm_params"]);
            add("model_info", &entry["model_info"]);
        }
    }
    let mut section = "";
    for line in include_str!("../data/litellm_keys.txt").lines().filter(|l| !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
            continue;
        }
        for name in line.split(' ') {
            assert!(have.contains(&(section.to_string(), name.to_string())), "{section}.{name}");
        }
    }
}
