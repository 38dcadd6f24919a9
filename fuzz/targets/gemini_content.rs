//! Any bytes as a client's request for content.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_api::core::Roles;

fuzz_target!(|data: &[u8]| {
    match octet_api::gemini::parse(data) {
        Ok(request) => {
            if let Some(chat) = request.chat() {
                // Refused by name, or fit for a template.
                let _ = chat.template(Roles::default());
            }
        }
        Err(e) => assert!(e.message.len() < 2000, "an error quotes little: {}", e.message.len()),
    }
});
