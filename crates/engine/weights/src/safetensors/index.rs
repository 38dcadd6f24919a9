//! The index of a sharded checkpoint, `model.safetensors.index.json`: which tensor lies in which file.

use super::Pairs;
use crate::Error;

/// Files of a checkpoint, and which of them each tensor must be in.
pub(crate) struct Index {
    /// Plain names of files in the same directory.
    pub shards: Vec<String>,
    /// Tensor name, and an index into `shards`.
    pub tensors: Vec<(String, usize)>,
}

#[derive(serde::Deserialize)]
struct Raw {
    weight_map: Pairs<String>,
}

impl Index {
    /// Parses `json`, which messages call `file`.
    pub fn parse(file: &str, json: &str) -> Result<Self, Error> {
        let Raw { weight_map: Pairs(pairs) } = serde_json::from_str(json)
            .map_err(|e| Error::format(file, format!("is not an index of safetensors files: {e}")))?;
        let mut shards: Vec<String> = pairs.iter().map(|(_, shard)| shard.clone()).collect();
        shards.sort();
        shards.dedup();
        let tensors = pairs
            .into_iter()
            .map(|(name, shard)| {
                if !is_plain_name(&shard) {
                    let what = format!(
                        "is listed in '{shard}'; expected the plain name of a .safetensors file beside the index"
                    );
                    return Err(Error::tensor(file, &name, what));
                }
                let at = shards.partition_point(|s| *s < shard);
                Ok((name, at))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shards, tensors })
    }
}

/// An index comes from a stranger: it must not lead out of its own directory.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_tensors() {
        let json = r#"{"metadata":{"total_size":1},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"}}"#;
        let index = Index::parse("x", json).unwrap();
        assert_eq!(index.shards, ["1.safetensors", "2.safetensors"]);
        assert_eq!(index.tensors, [("b".to_string(), 1), ("a".into(), 0), ("c".into(), 1)]);
    }

    #[test]
    fn damage_is_named() {
        for (json, want) in [
            ("{", "is not an index"),
            ("{}", "missing field `weight_map`"),
            (r#"{"weight_map":[]}"#, "expected an object"),
            (r#"{"weight_map":{"a":1}}"#, "tensor 'a': invalid type"),
            (r#"{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}"#, "tensor 'a' occurs twice"),
            (r#"{"weight_map":{"a":"../x.safetensors"}}"#, "tensor 'a' is listed in '../x.safetensors'"),
            (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "tensor 'a' is listed in '/etc/passwd'"),
            (r#"{"weight_map":{"a":".safetensors"}}"#, "tensor 'a' is listed in '.safetensors'"),
        ] {
            let said = Index::parse("m.index.json", json).err().expect(json).to_string();
            assert!(said.starts_with("m.index.json: ") && said.contains(want), "{json}: {said}");
        }
    }
}
