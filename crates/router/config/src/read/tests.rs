//! Checks that every declared key is read.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::reader::Reader;
use crate::{Source, sections, yaml};

struct Env;

impl Source for Env {
    fn variable(&self, name: &str) -> Option<String> {
        Some(format!("value-of-{name}"))
    }

    fn read(&self, path: &Path, _: u64) -> io::Result<String> {
        Err(io::Error::other(format!("{} is not read by this test", path.display())))
    }
}

#[test]
fn every_declared_key_is_read() {
    let text = include_str!("../../tests/data/full.yaml");
    let root = yaml::parse(&"full.yaml".into(), text, &mut Vec::new()).unwrap();
    let reader = Reader::new(&Env);
    super::config(&reader, &root);
    let asked = reader.asked();
    let declared: BTreeSet<_> =
        sections::all().iter().flat_map(|s| s.keys.iter().map(|k| (s.name, k.name))).collect();
    let forgotten: Vec<_> = declared.difference(&asked).collect();
    assert!(forgotten.is_empty(), "declared in sections/, but never read: {forgotten:?}");
}

#[test]
fn no_key_is_declared_twice() {
    for section in sections::all() {
        let mut seen = BTreeSet::new();
        for name in section.names() {
            assert!(seen.insert(name), "{}.{name}", section.name);
        }
    }
}
