//! docs/models.md lists what is supported.

use octet_engine::models::{ARCHITECTURES, MISSING};

/// The tables of the document: architectures, then those that are refused.
fn tables() -> String {
    let types = octet_weights::hf::model_types();
    let mut out =
        String::from("| GGUF architecture | models | checkpoints (`model_type`) |\n|---|---|---|\n");
    for a in ARCHITECTURES {
        let of_it: Vec<_> =
            types.iter().filter(|(_, arch)| *arch == a.name).map(|(t, _)| format!("`{t}`")).collect();
        out += &format!("| `{}` | {} | {} |\n", a.name, a.models, of_it.join(", "));
    }
    out += "\n| refused | needs |\n|---|---|\n";
    MISSING.iter().for_each(|(name, needs)| out += &format!("| `{name}` | {needs} |\n"));
    out
}

#[test]
fn lists_every_architecture() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/models.md");
    let document = std::fs::read_to_string(&path).expect("docs/models.md can be read");
    let rows = |text: &str| -> Vec<String> {
        text.lines().filter(|l| l.starts_with('|')).map(String::from).collect()
    };
    assert!(rows(&document) == rows(&tables()), "docs/models.md should have these tables:\n{}", tables());
}
