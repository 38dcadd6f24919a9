//! Saved probabilities of a base model (`octet compare --save-base`): a small file whose numbers, length and bytes the input changes.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use octet_quantize::base::{Head, Reader, Writer};

fuzz_target!(|data: &[u8]| {
    let Some((&[window, vocab, windows, at, with, change, cut], rest)) = data.split_first_chunk() else { return };
    let (window, vocab) = (usize::from(window % 30) + 2, usize::from(vocab) + 1);
    let tokens = (0..window * (usize::from(windows % 4) + 1)).map(|i| (i % vocab) as u32).collect();
    let head = Head { window, vocab, tokens };
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &head).expect("memory can be written");
    let value = |i: usize| f32::from(rest.get(i % rest.len().max(1)).copied().unwrap_or(0)) - 128.0;
    for row in 0..head.tokens.len() / window * head.rows() {
        let logits: Vec<f32> = (0..vocab).map(|i| value(row * vocab + i)).collect();
        writer.put(&logits).expect("memory can be written");
    }
    writer.finish().expect("memory can be written");
    match change % 4 {
        1 => bytes.truncate(bytes.len() * usize::from(cut) / 256),
        // The numbers at the beginning, above all.
        2 => bytes[8 + usize::from(at) % 12] = with,
        3 => {
            let at = usize::from(at) * 7 % bytes.len();
            bytes[at] = with;
        }
        _ => {}
    }
    let Ok(mut reader) = Reader::new(Cursor::new(&bytes)) else {
        assert!(!change.is_multiple_of(4), "a whole file is read");
        return;
    };
    assert!(!change.is_multiple_of(4) || reader.head == head);
    reader.rewind().expect("memory can be read");
    let mut row = vec![0.0; reader.head.vocab];
    for _ in 0..reader.head.tokens.len() / reader.head.window * reader.head.rows() {
        reader.read(&mut row).expect("all rows are there");
    }
});
