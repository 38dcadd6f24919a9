//! Any bytes as the event stream of Bedrock: cut or whole, it says the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_api::bedrock::ConverseReader;
use octet_api::core::Event;
use octet_api::dialect::StreamReader;

fn read(data: &[u8], piece: usize) -> Vec<Event> {
    let mut reader = ConverseReader::new();
    let mut out = Vec::new();
    data.chunks(piece).for_each(|bytes| reader.push(bytes, &mut out));
    reader.end(&mut out);
    out
}

fuzz_target!(|data: &[u8]| {
    let whole = read(data, usize::MAX);
    // NaN is not equal to itself, its text is.
    assert_eq!(format!("{whole:?}"), format!("{:?}", read(data, 7)));
    let errors = whole.iter().filter(|e| matches!(e, Event::Error(_))).count();
    assert!(
        errors == 0 || (errors == 1 && matches!(whole.last(), Some(Event::Error(_)))),
        "one error, at the end"
    );
});
