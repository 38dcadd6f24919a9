//! Compares `deploy/` with the server's sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies in crates/").to_path_buf()
}

fn read(name: &str) -> String {
    let path = root().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names of metrics in a text, as they are registered: without what Prometheus' format adds to them.
fn metrics(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for prefix in ["vllm:", "octet:"] {
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let registered =
                ["_total", "_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
            names.insert(format!("{prefix}{}", registered.unwrap_or(&name)));
        }
    }
    names
}

#[test]
fn metrics_that_the_dashboard_and_the_docs_show_are_those_of_the_server() {
    let ours = metrics(&read("crates/server/serve/src/ops/metrics.rs"));
    assert!(ours.len() > 25, "{ours:?}");
    let dashboard = metrics(&read("deploy/compose/grafana/dashboard.json"));
    assert!(dashboard.len() > 20, "{dashboard:?}");
    let unknown: Vec<_> = dashboard.difference(&ours).collect();
    assert!(unknown.is_empty(), "the server has no {unknown:?}");
    let docs = metrics(&read("docs/deploy.md"));
    let unknown: Vec<_> = docs.difference(&ours).collect();
    assert!(unknown.is_empty(), "the server has no {unknown:?}");
}
