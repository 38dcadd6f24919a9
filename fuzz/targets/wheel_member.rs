//! Any bytes as a wheel in which a member is looked for.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    octet_hub::fuzz::wheel_member(data, "m.gguf");
});
