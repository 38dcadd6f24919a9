//! Any bytes as a GGUF file: it opens or is refused, and all of what opens can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(m) = octet_weights::gguf::from_bytes("m.gguf", bytes::Bytes::copy_from_slice(data)) else {
        return;
    };
    for t in m.tensors() {
        let values = m.tensor(&t.name, &t.shape).expect("an accepted tensor can be read").to_f32();
        assert_eq!(values.len(), t.len());
    }
});
