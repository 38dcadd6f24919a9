//! Safetensors files: the header of one file, checked.
//!
//! Layout: the header's length (u64, little-endian), the header (a JSON object: tensor name to type, shape and byte
//! range in the data), the data, of which every byte belongs to one tensor.
//! <https://github.com/huggingface/safetensors#format>
//!
//! The crate `safetensors` is not used for reading: its errors do not name the tensor, a duplicate name goes
//! unseen, and sums of stated sizes can overflow. It writes the files that this parser is tested with.

mod index;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::{Error, GgmlType};

pub(crate) use index::Index;

/// The same bound as in the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;

/// Type names of the format, and bits of one value.
const TYPES: &[(&str, u64)] = &[
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// One tensor of a file.
pub(crate) struct Entry {
    pub name: String,
    /// Type name as in the file; one of [`TYPES`].
    pub dtype: String,
    pub shape: Vec<u64>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

impl Entry {
    /// The type as GGUF has it, when it is one that weights may have.
    pub fn ggml_type(&self) -> Option<GgmlType> {
        match self.dtype.as_str() {
            "F32" => Some(GgmlType::F32),
            "F16" => Some(GgmlType::F16),
            "BF16" => Some(GgmlType::BF16),
            _ => None,
        }
    }
}

/// A JSON object as pairs in order; a duplicate name is an error. Errors carry the name.
pub(crate) struct Pairs<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Pairs<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with one entry a tensor")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor '{name}' occurs twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    let value =
                        map.next_value().map_err(|e| A::Error::custom(format!("tensor '{name}': {e}")))?;
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        d.deserialize_map(V(PhantomData))
    }
}

#[derive(serde::Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of the file whose bytes are `bytes`, in the order of their data. Messages call it `file`.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let cut = "the file is truncated or damaged, download it again";
    let Some((length, rest)) = bytes.split_first_chunk() else {
        let what = format!("has {} bytes; a safetensors file has at least 8; {cut}", bytes.len());
        return Err(Error::format(file, what));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX || length > rest.len() as u64 {
        let what = format!(
            "says that its header has {length} bytes, but {} are left (at most {HEADER_BYTES_MAX} are accepted); it is no \
             safetensors file, or {cut}",
            rest.len()
        );
        return Err(Error::format(file, what));
    }
    let (header, data) = rest.split_at(length as usize);
    let Pairs(raw) = serde_json::from_slice::<Pairs<Raw>>(header)
        .map_err(|e| Error::format(file, format!("header is not what safetensors prescribes: {e}")))?;
    let data_start = (LENGTH_BYTES + length) as usize;
    let mut entries = raw
        .into_iter()
        .map(|(name, raw)| match place(&raw, data.len()) {
            Ok(Range { start, end }) => {
                let range = data_start + start..data_start + end;
                Ok(Entry { name, dtype: raw.dtype, shape: raw.shape, range })
            }
            Err(what) => Err(Error::tensor(file, &name, what)),
        })
        .collect::<Result<Vec<_>, Error>>()?;
    entries.sort_by_key(|e| (e.range.start, e.range.end));
    no_gaps(file, &entries, data_start..bytes.len())?;
    Ok(entries)
}

/// Where a tensor's bytes are in the data, or what is wrong with its entry.
fn place(raw: &Raw, data_len: usize) -> Result<Range<usize>, String> {
    let Some((_, bits)) = TYPES.iter().find(|(name, _)| *name == raw.dtype) else {
        return Err(format!("has type '{}', which is not one of the format's", raw.dtype));
    };
    let [start, end] = raw.data_offsets;
    if start > end {
        return Err(format!("has offsets {start}..{end}, which end before they begin"));
    }
    let size =
        raw.shape.iter().try_fold(*bits, |n, &d| n.checked_mul(d)).filter(|n| n % 8 == 0).map(|n| n / 8);
    if size != Some(end - start) {
        let needs = size.map_or("an impossible number of".into(), |n| n.to_string());
        return Err(format!("has {} bytes; {} {:?} needs {needs}", end - start, raw.dtype, raw.shape));
    }
    if end > data_len as u64 {
        return Err(format!(
            "needs bytes {start}..{end} of the data, which has {data_len}; the file is truncated or damaged, download \
             it again"
        ));
    }
    Ok(start as usize..end as usize)
}

/// Every byte of `data` must belong to exactly one of `entries`, which are in order.
fn no_gaps(file: &str, entries: &[Entry], data: Range<usize>) -> Result<(), Error> {
    let mut at = data.start;
    let mut before = "";
    for e in entries {
        if e.range.start < at {
            let what = format!("at byte {} overlaps tensor '{before}'; the file is damaged", e.range.start);
            return Err(Error::tensor(file, &e.name, what));
        }
        if e.range.start > at {
            let what = format!("begins at byte {}, but the data before it ends at {at}", e.range.start);
            return Err(Error::tensor(file, &e.name, what));
        }
        (at, before) = (e.range.end, &e.name);
    }
    if at != data.end {
        let what =
            format!("has {} bytes after its last tensor '{before}'; the file is damaged", data.end - at);
        return Err(Error::format(file, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.resize(out.len() + data, 0);
        out
    }

    #[test]
    fn damage_is_named() {
        let a = r#""a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;
        let ok = format!("{{{a}}}");
        assert_eq!(parse("x", &file(&ok, 16)).unwrap().len(), 1);
        let entry = |s: &str| format!("{{\"a.weight\":{s}}}");
        for (header, data, want) in [
            (ok.clone(), 15, "m.safetensors: tensor 'a.weight' needs bytes 0..16 of the data, which has 15"),
            (ok.clone(), 17, "m.safetensors: has 1 bytes after its last tensor 'a.weight'"),
            (
                format!("{{{a},{a}}}"),
                16,
                "m.safetensors: header is not what safetensors prescribes: tensor 'a.weight' occurs twice",
            ),
            (
                format!("{{{a},\"b\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[17,18]}}}}"),
                18,
                "tensor 'b' begins at byte",
            ),
            (
                format!("{{{a},\"b\":{{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[15,18]}}}}"),
                18,
                "tensor 'b' at byte",
            ),
            (
                entry(r#"{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}"#),
                16,
                "tensor 'a.weight' has 16 bytes; F32 [2, 3] needs 24",
            ),
            (
                entry(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}"#),
                16,
                "an impossible number",
            ),
            (entry(r#"{"dtype":"F4","shape":[1],"data_offsets":[0,0]}"#), 0, "an impossible number"),
            (
                entry(r#"{"dtype":"Q3","shape":[4],"data_offsets":[0,16]}"#),
                16,
                "tensor 'a.weight' has type 'Q3'",
            ),
            (
                entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#),
                16,
                "tensor 'a.weight' has offsets 16..0",
            ),
            (
                entry(r#"{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}"#),
                16,
                "tensor 'a.weight': invalid value",
            ),
            (entry(r#"{"shape":[4],"data_offsets":[0,16]}"#), 16, "tensor 'a.weight': missing field `dtype`"),
            ("[]".into(), 0, "expected an object with one entry a tensor"),
            ("{".into(), 0, "EOF"),
        ] {
            let said = parse("m.safetensors", &file(&header, data)).err().expect(&header).to_string();
            assert!(said.starts_with("m.safetensors: ") && said.contains(want), "{header}: {said}");
        }
        for len in 0..8 {
            assert!(
                parse("m.safetensors", &file("{}", 0)[..len])
                    .err()
                    .unwrap()
                    .to_string()
                    .contains("at least 8")
            );
        }
        let said = parse("m.safetensors", &u64::MAX.to_le_bytes()).err().unwrap().to_string();
        assert!(said.contains("18446744073709551615 bytes"), "{said}");
    }

    proptest! {
        /// What the reference implementation writes is read back; what it refuses is refused.
        #[test]
        fn agrees_with_the_reference(
            shapes in prop::collection::vec((prop::collection::vec(0usize..5, 0..4), any::<bool>()), 0..6),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..3),
        ) {
            use ::safetensors::{Dtype, SafeTensors, tensor::TensorView};
            let bytes: Vec<u8> = (0..=255).collect();
            let views = shapes.iter().enumerate().map(|(i, (shape, wide))| {
                let (dtype, size) = if *wide { (Dtype::F32, 4) } else { (Dtype::BF16, 2) };
                let n = shape.iter().product::<usize>() * size;
                (format!("t{i}"), TensorView::new(dtype, shape.clone(), &bytes[..n]).unwrap())
            });
            let mut file = ::safetensors::serialize(views, None).unwrap();
            for (at, bit) in flips {
                let at = at.index(file.len());
                file[at] ^= 1 << bit;
            }
            match (parse("x", &file), SafeTensors::deserialize(&file)) {
                (Ok(ours), Ok(theirs)) => {
                    prop_assert_eq!(ours.len(), theirs.len());
                    for e in ours {
                        let t = theirs.tensor(&e.name).unwrap();
                        prop_assert_eq!(&file[e.range], t.data());
                        prop_assert_eq!(e.shape, t.shape().iter().map(|&d| d as u64).collect::<Vec<_>>());
                    }
                }
                (Ok(ours), Err(e)) => prop_assert!(false, "{} tensors where the reference says {}", ours.len(), e),
                (Err(_), _) => {}
            }
        }
    }
}
