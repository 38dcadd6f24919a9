//! The GGUF reader and writer: written files are read back, and damaged ones are refused with a message that says
//! where. `alloc.rs` compares the reader's memory with the file's size.

use crate::support::*;
use octet_weights::gguf::{Writer, from_bytes};
use octet_weights::{GgmlType, Metadata, Model, Value};
use proptest::prelude::*;

#[test]
fn small_file() {
    let m = Raw::small().open().unwrap();
    assert_eq!(m.metadata.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.metadata.u32("llama.block_count").unwrap(), 2);
    assert_eq!(m.tensor("a.weight", &[2, 4]).unwrap().to_f32(), [0., 1., 2., 3., 4., 5., 6., 7.]);
    assert_eq!(m.tensor("b.weight", &[8]).unwrap().to_f32()[7], 15.0);
    assert_eq!(m.size_bytes(), 64);
    // One row is a vector, whichever way it was written.
    assert!(m.tensor("b.weight", &[1, 8]).is_ok());
    let said = m.tensor("a.weight", &[4, 2]).unwrap_err().to_string();
    assert_eq!(said, "m.gguf: tensor 'a.weight' has shape [2, 4]; expected [4, 2]");
    let said = m.tensor("c.weight", &[4]).unwrap_err().to_string();
    assert_eq!(said, "m.gguf: tensor 'c.weight' is missing; expected shape [4]");
    let v2 = Raw { version: 2, ..Raw::small() };
    assert_eq!(v2.open().unwrap().tensors(), m.tensors());
}

/// Ollama's converter writes `blk.N.ssm_dt` where llama.cpp's writes `blk.N.ssm_dt.bias`.
#[test]
fn ollamas_name_of_a_tensor_is_the_usual_one() {
    let mut f = Raw::small();
    f.tensors = vec![tensor("blk.7.ssm_dt", &[8], 0, 0), tensor("my.ssm_dt", &[8], 0, 32)];
    let m = f.open().unwrap();
    assert_eq!(m.tensor("blk.7.ssm_dt.bias", &[8]).unwrap().to_f32()[7], 7.0);
    assert!(m.info("my.ssm_dt").is_some() && m.info("blk.7.ssm_dt").is_none());
    f.tensors = vec![tensor("blk.7.ssm_dt", &[8], 0, 0), tensor("blk.7.ssm_dt.bias", &[8], 0, 32)];
    assert!(refusal(f.open()).contains("'blk.7.ssm_dt.bias' occurs twice"));
}

#[test]
fn every_value_type() {
    let mut f = Raw::small();
    let nested = [array(8, 1, &string(b"x")), array(4, 2, &[1, 0, 0, 0, 2, 0, 0, 0])].concat();
    f.keys = vec![
        key("u8", 0, &[200]),
        key("i8", 1, &[0xff]),
        key("u16", 2, &[0, 1]),
        key("i16", 3, &[0xfe, 0xff]),
        key("u32", 4, &[1, 0, 0, 0x80]),
        key("i32", 5, &(-7i32).to_le_bytes()),
        key("f32", 6, &1.5f32.to_le_bytes()),
        key("bool", 7, &[1]),
        key("string", 8, &string("é".as_bytes())),
        key("u64", 10, &u64::MAX.to_le_bytes()),
        key("i64", 11, &i64::MIN.to_le_bytes()),
        key("f64", 12, &1e300f64.to_le_bytes()),
        key("bools", 9, &array(7, 2, &[1, 0])),
        key("strings", 9, &array(8, 2, &[string(b""), string(b"ab")].concat())),
        key("u8s", 9, &array(0, 2, &[1, 255])),
        key("i16s", 9, &array(3, 1, &[0xff, 0xff])),
        key("u64s", 9, &array(10, 1, &7u64.to_le_bytes())),
        key("f32s", 9, &array(6, 1, &0.25f32.to_le_bytes())),
        key("empty", 9, &array(8, 0, &[])),
        key("nested", 9, &array(9, 2, &nested)),
    ];
    let m = f.open().unwrap().metadata;
    let strs = |s: &[&str]| Value::Strs(s.iter().map(|s| s.to_string()).collect());
    for (k, want) in [
        ("u8", Value::U64(200)),
        ("i8", Value::I64(-1)),
        ("u16", Value::U64(256)),
        ("i16", Value::I64(-2)),
        ("u32", Value::U64(0x8000_0001)),
        ("i32", Value::I64(-7)),
        ("f32", Value::F64(1.5)),
        ("bool", Value::Bool(true)),
        ("string", Value::Str("é".into())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(1e300)),
        ("bools", Value::Array(vec![Value::Bool(true), Value::Bool(false)])),
        ("strings", strs(&["", "ab"])),
        ("u8s", Value::Ints(vec![1, 255])),
        ("i16s", Value::Ints(vec![-1])),
        ("u64s", Value::Ints(vec![7])),
        ("f32s", Value::Floats(vec![0.25])),
        ("empty", strs(&[])),
        ("nested", Value::Array(vec![strs(&["x"]), Value::Ints(vec![1, 2])])),
    ] {
        assert_eq!(m.get(k), Some(&want), "{k}");
    }
}

/// Each damage, and what the message must say; every message begins with the file's name.
#[test]
fn damage_is_named() {
    let edit = |f: fn(&mut Raw)| {
        let mut raw = Raw::small();
        f(&mut raw);
        raw
    };
    let cases: Vec<(&str, Raw, &[&str])> = vec![
        ("magic", edit(|f| f.magic = *b"PK\x03\x04"), &["header begins with bytes [50, 4b, 03, 04]", "GGUF"]),
        ("old format", edit(|f| f.magic = *b"tjgg"), &["from before GGUF"]),
        ("version 1", edit(|f| f.version = 1), &["GGUF version 1", "convert"]),
        ("version 9", edit(|f| f.version = 9), &["GGUF version 9", "2 and 3"]),
        (
            "big-endian",
            edit(|f| f.version = 3u32.swap_bytes()),
            &["big-endian (version 3", "gguf-convert-endian"],
        ),
        (
            "tensor count",
            edit(|f| f.tensor_count = Some(1 << 60)),
            &["header declares 1152921504606846976 tensors"],
        ),
        ("one tensor more", edit(|f| f.tensor_count = Some(3)), &["tensor 3 of 3 has a name of 0 bytes"]),
        (
            "key count",
            edit(|f| f.key_count = Some(u64::MAX)),
            &["header declares 18446744073709551615 metadata keys"],
        ),
        (
            "duplicate key",
            edit(|f| f.keys.push(f.keys[1].clone())),
            &["metadata key 'llama.block_count' occurs twice"],
        ),
        (
            "nameless key",
            edit(|f| f.keys[0] = key("", 4, &[0; 4])),
            &["metadata key 1 of 2 has a name of 0 bytes"],
        ),
        ("key not UTF-8", edit(|f| f.keys[0][8] = 0xff), &["metadata key 1 of 2", "not UTF-8"]),
        ("value type", edit(|f| f.keys[0] = key("k", 13, &[0; 8])), &["metadata key 'k' has value type 13"]),
        (
            "string length",
            edit(|f| f.keys[0] = key("k", 8, &u64::MAX.to_le_bytes())),
            &["metadata key 'k' needs 18446744073709551615 bytes at offset 45"],
        ),
        (
            "string not UTF-8",
            edit(|f| f.keys[0] = key("k", 8, &string(b"\xff"))),
            &["metadata key 'k'", "not UTF-8"],
        ),
        (
            "boolean",
            edit(|f| f.keys[0] = key("k", 7, &[2])),
            &["metadata key 'k' holds 2; a boolean is 0 or 1"],
        ),
        (
            "array type",
            edit(|f| f.keys[0] = key("k", 9, &array(99, 0, &[]))),
            &["metadata key 'k' is an array of type 99"],
        ),
        (
            "array length",
            edit(|f| f.keys[0] = key("k", 9, &array(4, 1 << 40, &[]))),
            &["metadata key 'k' declares 1099511627776 elements"],
        ),
        (
            "array length times size",
            edit(|f| f.keys[0] = key("k", 9, &array(11, 1 << 61, &[]))),
            &["metadata key 'k' declares 2305843009213693952 elements"],
        ),
        (
            "array of large u64",
            edit(|f| f.keys[0] = key("k", 9, &array(10, 1, &[0xff; 8]))),
            &["metadata key 'k' holds 18446744073709551615"],
        ),
        (
            "booleans without end",
            edit(|f| f.keys[0] = key("k", 9, &array(7, 65537, &[0; 65537]))),
            &["metadata key 'k' declares 65537 elements; at most 65536"],
        ),
        (
            "arrays in arrays",
            edit(|f| {
                let deep = (0..5).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
                f.keys[0] = key("k", 9, &deep);
            }),
            &["metadata key 'k' has arrays in arrays deeper than 4"],
        ),
        (
            "alignment",
            edit(|f| f.keys[0] = key("general.alignment", 4, &48u32.to_le_bytes())),
            &["metadata key 'general.alignment' is 48; expected a power of two"],
        ),
        (
            "alignment 0",
            edit(|f| f.keys[0] = key("general.alignment", 4, &[0; 4])),
            &["metadata key 'general.alignment' is 0"],
        ),
        (
            "alignment's type",
            edit(|f| f.keys[0] = key("general.alignment", 8, &string(b"32"))),
            &["metadata key 'general.alignment' is not an unsigned 32-bit integer"],
        ),
        (
            "no dimensions",
            edit(|f| f.tensors[0] = tensor("a.weight", &[], 0, 0)),
            &["tensor 'a.weight' has 0 dimensions; expected 1 to 4"],
        ),
        (
            "five dimensions",
            edit(|f| f.tensors[0] = tensor("a.weight", &[1; 5], 0, 0)),
            &["tensor 'a.weight' has 5 dimensions"],
        ),
        (
            "dimension 0",
            edit(|f| f.tensors[0] = tensor("a.weight", &[4, 0], 0, 0)),
            &["tensor 'a.weight' has a dimension of 0"],
        ),
        (
            "type",
            edit(|f| f.tensors[0] = tensor("a.weight", &[4, 2], 4, 0)),
            &["tensor 'a.weight' has GGML type 4, which is not supported", "Q4_K"],
        ),
        (
            "rows and blocks",
            edit(|f| f.tensors[0] = tensor("a.weight", &[33], 8, 0)),
            &["tensor 'a.weight' has rows of 33 values; Q8_0 needs a multiple of 32"],
        ),
        (
            "size overflows",
            edit(|f| f.tensors[0] = tensor("a.weight", &[1 << 40, 1 << 40], 0, 0)),
            &["tensor 'a.weight' has shape [1099511627776, 1099511627776], which is larger than any file"],
        ),
        (
            "bytes overflow",
            edit(|f| f.tensors[0] = tensor("a.weight", &[1 << 62], 0, 0)),
            &["tensor 'a.weight'", "larger than any file"],
        ),
        (
            "too large",
            edit(|f| f.tensors[1] = tensor("b.weight", &[9], 0, 32)),
            &["tensor 'b.weight' needs bytes", "the file ends at"],
        ),
        (
            "wrong shape",
            edit(|f| f.tensors[0] = tensor("a.weight", &[4, 3], 0, 0)),
            &["tensor 'b.weight' at bytes", "overlaps tensor 'a.weight'"],
        ),
        (
            "overlap",
            edit(|f| f.tensors[1] = tensor("b.weight", &[8], 0, 0)),
            &["tensor 'b.weight' at bytes", "overlaps tensor 'a.weight'"],
        ),
        (
            "offset not aligned",
            edit(|f| f.tensors[1] = tensor("b.weight", &[4], 0, 36)),
            &["tensor 'b.weight' has offset 36, which is not a multiple of the alignment 32"],
        ),
        (
            "offset past the end",
            edit(|f| f.tensors[1] = tensor("b.weight", &[8], 0, 4096)),
            &["tensor 'b.weight' needs bytes"],
        ),
        (
            "offset overflows",
            edit(|f| f.tensors[1] = tensor("b.weight", &[8], 0, u64::MAX - 31)),
            &["tensor 'b.weight' has offset 18446744073709551584, which no file can have"],
        ),
        (
            "duplicate tensor",
            edit(|f| f.tensors[1] = tensor("a.weight", &[8], 0, 32)),
            &["tensor 'a.weight' occurs twice"],
        ),
        (
            "control characters",
            edit(|f| f.tensors[0] = tensor("\x1b[2J", &[], 0, 0)),
            &["tensor '\\u{1b}[2J' has 0 dimensions"],
        ),
        ("part of a set", edit(|f| f.keys[1] = key("split.count", 2, &[3, 0])), &["is one part of several"]),
    ];
    for (what, raw, wants) in cases {
        let said = refusal(raw.open());
        assert!(said.starts_with("m.gguf: "), "{what}: {said}");
        for want in wants {
            assert!(said.contains(want), "{what}: {said:?} does not say {want:?}");
        }
    }
}

/// Cut anywhere, a file is refused, and the message names the file and what was being read.
#[test]
fn truncated_anywhere() {
    let raw = Raw::small();
    let (head, bytes) = raw.build();
    for len in 0..bytes.len() {
        let said = refusal(from_bytes("m.gguf", bytes.slice(..len)));
        let subject = match len {
            0..24 => "header",
            24..32 => "header declares 2 tensors", // counts are compared with the length before anything else
            _ if len < head => "",
            _ => "tensor '",
        };
        assert!(said.starts_with(&format!("m.gguf: {subject}")), "{len}: {said}");
        assert!(said.contains("download it again"), "{len}: {said}");
    }
    // With one thing in the file, its count passes long before the thing is whole.
    let long = "n".repeat(40);
    let one_key = Raw {
        keys: vec![key(&long, 8, &string(long.as_bytes()))],
        tensors: vec![],
        data: vec![],
        ..Raw::small()
    };
    let one_tensor = Raw { keys: vec![], tensors: vec![tensor(&long, &[4, 2], 0, 0)], ..Raw::small() };
    for (raw, number, name) in
        [(one_key, "metadata key 1 of 1", "metadata key"), (one_tensor, "tensor 1 of 1", "tensor")]
    {
        let bytes = raw.build().1;
        let end = 24 + raw.keys.concat().len() + raw.tensors.concat().len();
        for len in 24 + 33..end {
            let said = refusal(from_bytes("m.gguf", bytes.slice(..len)));
            let named = format!("m.gguf: {name} '{long}' needs ");
            let want = if len < 24 + 8 + long.len() { format!("m.gguf: {number} needs ") } else { named };
            assert!(said.starts_with(&want) && said.contains("at offset"), "{len}: {said}");
        }
    }
}

#[test]
fn writer_and_reader_agree() {
    let keys = metadata(&[
        ("general.alignment", Value::U64(64)),
        ("a.u64", Value::U64(1 << 40)),
        ("a.u32", Value::U64(7)),
        ("a.i64", Value::I64(-(1 << 40))),
        ("a.f", Value::F64(0.5)),
        ("a.huge", Value::F64(1e300)),
        ("a.bool", Value::Bool(true)),
        ("a.str", Value::Str("π\0".into())),
        ("a.ints", Value::Ints(vec![1, -2, 3])),
        ("a.longs", Value::Ints(vec![1 << 40])),
        ("a.floats", Value::Floats(vec![0.5, -1.0])),
        ("a.bools", Value::Array(vec![Value::Bool(true), Value::Bool(false)])),
        ("a.strs", Value::Strs(vec!["x".into(), String::new()])),
        ("a.nested", Value::Array(vec![Value::Ints(vec![1]), Value::Strs(vec![])])),
    ]);
    let tensors = [
        (info("t.f32", GgmlType::F32, &[3, 5]), counting(15)),
        (info("t.q8", GgmlType::Q8_0, &[2, 2, 64]), (0..8 * 34).map(|i| i as u8).collect()),
        (info("t.q6", GgmlType::Q6_K, &[256]), vec![7; 210]),
    ];
    let bytes = write(&keys, &tensors);
    assert_eq!(bytes.len() % 64, 0);
    let m = from_bytes("m.gguf", bytes.into()).unwrap();
    assert_eq!(m.metadata.iter().collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
    for (t, data) in &tensors {
        assert_eq!(m.info(&t.name), Some(t));
        assert_eq!(m.optional(&t.name).unwrap().unwrap().data, data, "{}", t.name);
    }
}

#[test]
fn writer_takes_pieces_and_refuses_what_does_not_fit() {
    let infos = vec![info("a", GgmlType::F32, &[3]), info("b", GgmlType::F32, &[2])];
    let new = || Writer::new(Vec::new(), &Metadata::new("out.gguf"), infos.clone()).unwrap();
    let mut w = new();
    assert_eq!(w.current(), Some(&infos[0]));
    for byte in counting(3) {
        w.append(&[byte]).unwrap();
    }
    assert_eq!(w.current(), Some(&infos[1]));
    w.append(&counting(2)).unwrap();
    assert_eq!(w.current(), None);
    assert!(w.append(&[1]).unwrap_err().to_string().contains("has all its tensors"));
    let m = from_bytes("m", w.finish().unwrap().into()).unwrap();
    assert_eq!(m.tensor("b", &[2]).unwrap().to_f32(), [0.0, 1.0]);

    let mut w = new();
    let said = w.append(&counting(4)).unwrap_err().to_string();
    assert_eq!(said, "out.gguf: tensor 'a' has 12 bytes; 16 were given");
    let mut w = new();
    w.append(&[0; 5]).unwrap();
    let said = w.finish().unwrap_err().to_string();
    assert_eq!(said, "out.gguf: tensor 'a' has 5 of its 12 bytes");

    for (tensors, want) in [
        (vec![infos[0].clone(), infos[0].clone()], "tensor 'a' is given twice"),
        (vec![info("", GgmlType::F32, &[1])], "has a name of 0 bytes"),
        (vec![info(&"n".repeat(64), GgmlType::F32, &[1])], "has a name of 64 bytes"),
        (vec![info("a", GgmlType::F32, &[])], "has shape []"),
        (vec![info("a", GgmlType::F32, &[0])], "has shape [0]"),
        (vec![info("a", GgmlType::F32, &[1; 5])], "expected 1 to 4 dimensions"),
        (vec![info("a", GgmlType::Q4_K, &[32])], "Q4_K needs a multiple of 256"),
    ] {
        let said =
            Writer::new(Vec::new(), &Metadata::new("out.gguf"), tensors).err().expect(want).to_string();
        assert!(said.contains(want), "{said}");
    }
    let odd = metadata(&[("k", Value::Array(vec![Value::U64(1)]))]);
    assert!(Writer::new(Vec::new(), &odd, vec![]).err().unwrap().to_string().contains("metadata key 'k'"));
}

/// Writes a set of `count` parts, tensor `t{i}` in part `i`, and gives the directory.
fn split_set(count: usize, edit: impl Fn(usize, &mut Metadata)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..count {
        let mut keys = metadata(&[
            ("split.no", Value::U64(i as u64)),
            ("split.count", Value::U64(count as u64)),
            ("split.tensors.count", Value::I64(count as i64)),
        ]);
        if i == 0 {
            keys.insert("general.architecture", Value::Str("llama".into()));
        }
        edit(i, &mut keys);
        let bytes = write(&keys, &[(info(&format!("t{i}"), GgmlType::F32, &[i + 1]), counting(i + 1))]);
        std::fs::write(part(&dir, i, count), bytes).unwrap();
    }
    dir
}

fn part(dir: &tempfile::TempDir, i: usize, count: usize) -> std::path::PathBuf {
    dir.path().join(format!("big-{:05}-of-{count:05}.gguf", i + 1))
}

#[test]
fn any_part_opens_the_set() {
    let dir = split_set(3, |_, _| {});
    let paths = (0..3).map(|i| part(&dir, i, 3)).chain([dir.path().to_path_buf()]);
    for path in paths {
        let m = Model::open(&path).unwrap();
        assert_eq!(m.metadata.str("general.architecture").unwrap(), "llama");
        assert_eq!(m.tensors().len(), 3);
        assert_eq!(m.tensor("t2", &[3]).unwrap().to_f32(), [0.0, 1.0, 2.0]);
        m.release("t2");
    }
}

#[test]
fn parts_that_do_not_fit() {
    let dir = split_set(3, |_, _| {});
    std::fs::remove_file(part(&dir, 1, 3)).unwrap();
    let said = refusal(Model::open(part(&dir, 2, 3)));
    assert!(said.contains("big-00002-of-00003.gguf: is missing: it is part 2 of the 3 that"), "{said}");

    let dir = split_set(2, |_, _| {});
    let moved = dir.path().join("renamed.gguf");
    std::fs::rename(part(&dir, 0, 2), &moved).unwrap();
    let said = refusal(Model::open(&moved));
    assert!(said.contains("renamed.gguf: is part 1 of 2") && said.contains("-00001-of-00002.gguf"), "{said}");

    let dir = split_set(2, |_, _| {});
    std::fs::copy(part(&dir, 0, 2), part(&dir, 1, 2)).unwrap();
    let said = refusal(Model::open(part(&dir, 0, 2)));
    assert!(said.contains("00002-of-00002.gguf: metadata key 'split.no' declares part 0 of 2"), "{said}");

    let dir = split_set(2, |_, keys| {
        keys.insert("split.tensors.count", Value::U64(9));
    });
    let said = refusal(Model::open(part(&dir, 0, 2)));
    assert!(said.contains("'split.tensors.count' is 9, but the 2 parts hold 2 tensors"), "{said}");

    let dir = split_set(2, |_, _| {});
    let keys = metadata(&[("split.no", Value::U64(1)), ("split.count", Value::U64(2))]);
    let again = write(&keys, &[(info("t0", GgmlType::F32, &[1]), counting(1))]);
    std::fs::write(part(&dir, 1, 2), again).unwrap();
    let said = refusal(Model::open(part(&dir, 0, 2)));
    assert!(said.contains("00002-of-00002.gguf: tensor 't0' occurs in "), "{said}");
}

#[test]
fn paths_open_models_or_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let said = refusal(Model::open(dir.path()));
    assert!(said.contains("has neither a .gguf file in it nor config.json"), "{said}");
    let said = refusal(Model::open(at("none.gguf")));
    assert!(said.contains("none.gguf: "), "{said}");

    let bytes = Raw::small().build().1;
    std::fs::write(at("a.gguf"), &bytes).unwrap();
    std::fs::write(at("mmproj-a.gguf"), b"an image projector").unwrap();
    assert_eq!(Model::open(dir.path()).unwrap().tensors().len(), 2);
    std::fs::write(at("b.gguf"), &bytes).unwrap();
    let said = refusal(Model::open(dir.path()));
    assert!(said.contains("has 2 GGUF models in it; give one of them: a.gguf, b.gguf"), "{said}");
    // The name does not matter for a file.
    std::fs::write(at("blob"), &bytes).unwrap();
    assert!(Model::open(at("blob")).is_ok());

    for name in ["model.safetensors", "config.json"] {
        std::fs::write(at(name), b"{}").unwrap();
        let said = refusal(Model::open(at(name)));
        assert!(said.contains(name) && said.contains("give its directory instead"), "{said}");
    }
    for name in ["a.gguf", "b.gguf", "model.safetensors"] {
        std::fs::remove_file(at(name)).unwrap();
    }
    let said = refusal(Model::open(dir.path()));
    assert!(said.contains("has neither model.safetensors nor model.safetensors.index.json"), "{said}");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_filter("comparable", |x| !x.is_nan()).prop_map(|x| Value::F64(x.into())),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::Str),
    ];
    let array = prop_oneof![
        prop::collection::vec(any::<String>(), 0..4).prop_map(Value::Strs),
        prop::collection::vec(any::<i64>(), 0..4).prop_map(Value::Ints),
        prop::collection::vec(-1e3f32..1e3, 0..4)
            .prop_map(|v| Value::Floats(v.into_iter().map(f64::from).collect())),
        prop::collection::vec(any::<bool>().prop_map(Value::Bool), 1..4).prop_map(Value::Array),
    ];
    let nested = prop::collection::vec(array.clone(), 0..3).prop_map(Value::Array);
    prop_oneof![leaf, array, nested]
}

proptest! {
    #[test]
    fn any_metadata_and_tensors_round_trip(
        keys in prop::collection::btree_map("[a-z.]{1,12}", value(), 0..8),
        shapes in prop::collection::vec((prop::collection::vec(1usize..5, 1..5), 0usize..3), 0..6),
    ) {
        let mut m = Metadata::new("m.gguf");
        for (k, v) in &keys {
            m.insert(k, v.clone());
        }
        let tensors: Vec<_> = shapes.into_iter().enumerate().map(|(i, (mut shape, ty))| {
            let ty = [GgmlType::F32, GgmlType::BF16, GgmlType::Q5_1][ty];
            *shape.last_mut().unwrap() *= ty.block_len();
            let t = info(&format!("t{i}"), ty, &shape);
            let data = (0..t.size_bytes()).map(|b| (b * 7 + i as u64) as u8).collect();
            (t, data)
        }).collect();
        let read = from_bytes("m.gguf", write(&m, &tensors).into()).unwrap();
        prop_assert_eq!(read.metadata.iter().collect::<Vec<_>>(), m.iter().collect::<Vec<_>>());
        for (t, data) in tensors {
            prop_assert_eq!(&read.optional(&t.name).unwrap().unwrap().data, &data);
        }
    }

    /// Whatever bits flip, the file opens or is refused by name; every tensor of a file that opens can be read.
    #[test]
    fn bit_flips(flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6)) {
        let (head, bytes) = Raw::small().build();
        let mut bytes = bytes.to_vec();
        for (at, bit) in flips {
            bytes[at.index(head)] ^= 1 << bit;
        }
        match from_bytes("m.gguf", bytes.into()) {
            Err(e) => prop_assert!(e.to_string().starts_with("m.gguf: "), "{}", e),
            Ok(m) => for t in m.tensors() {
                m.optional(&t.name).unwrap();
            },
        }
    }
}
