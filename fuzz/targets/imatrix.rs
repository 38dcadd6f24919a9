//! Importance matrices in both formats: sums and counts whose shapes, types and numbers the input changes.
//!
//! The first byte chooses the format. Then each matrix takes four bytes: what happens to it, and by how much; the rest are the numbers,
//! over and over. What is read has finite numbers, and fits its counts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_quantize::Importance;

const NAMES: [&str; 3] = ["blk.0.ffn_down_exps.weight", "blk.1.attn_q.weight", "output.weight"];

/// A tensor of a GGUF file: name, type, shape from the innermost dimension, and size in bytes.
type Part = (String, u32, Vec<u64>, usize);

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Numbers as the input has them, or small ones.
fn numbers(fill: &[u8], bytes: usize) -> Vec<u8> {
    match fill.is_empty() {
        true => vec![0; bytes],
        false => fill.iter().copied().cycle().take(bytes).collect(),
    }
}

fn gguf(kind: u8, parts: &[Part], fill: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((parts.len() as u64).to_le_bytes());
    out.extend(2u64.to_le_bytes());
    text(&mut out, "general.type");
    out.extend(8u32.to_le_bytes());
    text(&mut out, if kind % 16 == 15 { "model" } else { "imatrix" });
    text(&mut out, "imatrix.chunk_count");
    out.extend(4u32.to_le_bytes());
    out.extend(u32::from(kind).to_le_bytes());
    let mut offset = 0u64;
    for (name, ty, shape, bytes) in parts {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (*bytes as u64).next_multiple_of(32);
    }
    for (_, _, _, bytes) in parts {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(numbers(fill, *bytes));
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind], mut rest)) = data.split_first_chunk() else { return };
    let (mut parts, mut dat) = (Vec::new(), 3i32.to_le_bytes().to_vec());
    for (i, name) in NAMES.iter().enumerate() {
        let Some((&[change, columns, experts, by], after)) = rest.split_first_chunk() else { return };
        rest = after;
        let (columns, experts) = (u64::from(columns % 65), u64::from(experts % 9));
        let counts = if change % 8 == 1 { u64::from(by) } else { experts };
        let (sums_type, size) = if change % 8 == 2 { (u32::from(by % 48), 4) } else { (0, 4) };
        let of = |n: u64| (n * size) as usize;
        if change % 8 != 3 {
            parts.push((format!("{name}.in_sum2"), sums_type, vec![columns, experts], of(columns * experts)));
        }
        if change % 8 != 4 {
            parts.push((format!("{name}.counts"), 0, vec![1, counts], of(counts)));
        }
        // The older format: a name, calls, and that many values.
        let named = if change % 8 == 5 { i32::from(by) - 128 } else { name.len() as i32 };
        let values = if change % 8 == 6 { i32::from(by) << (i * 8) } else { columns as i32 };
        for n in [named.to_le_bytes().as_slice(), name.as_bytes(), &i32::from(by).to_le_bytes(), &values.to_le_bytes()] {
            dat.extend(n);
        }
        dat.extend(numbers(after, of(columns)));
    }
    let bytes = if kind % 2 == 0 { gguf(kind, &parts, rest) } else { dat };
    let Ok(all) = Importance::from_bytes("im", bytes.into()) else { return };
    for (name, seen) in &all.seen {
        assert!(seen.columns > 0 && seen.sums.len().is_multiple_of(seen.columns), "{name}");
        assert!(seen.sums.iter().chain(&seen.counts).all(|v| v.is_finite() && *v >= 0.0), "{name}");
    }
    all.to_model().expect("what was read can be written");
});
