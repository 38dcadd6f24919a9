//! Any bytes as the stream of an OpenAI-like provider: cut or whole, it says the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_api::core::Event;
use octet_api::dialect::StreamReader;
use octet_api::openai::chat::ChunkReader;
use octet_api::openai::responses::ResponseReader;

fn read(mut reader: impl StreamReader, data: &[u8], piece: usize) -> Vec<Event> {
    let mut out = Vec::new();
    data.chunks(piece).for_each(|bytes| reader.push(bytes, &mut out));
    reader.end(&mut out);
    out
}

fn check(whole: &[Event], cut: &[Event]) {
    // NaN is not equal to itself, its text is.
    assert_eq!(format!("{whole:?}"), format!("{cut:?}"));
    let errors = whole.iter().filter(|e| matches!(e, Event::Error(_))).count();
    assert!(
        errors == 0 || (errors == 1 && matches!(whole.last(), Some(Event::Error(_)))),
        "one error, at the end"
    );
}

fuzz_target!(|data: &[u8]| {
    check(&read(ChunkReader::new(), data, usize::MAX), &read(ChunkReader::new(), data, 7));
    check(&read(ResponseReader::new(), data, usize::MAX), &read(ResponseReader::new(), data, 7));
});
