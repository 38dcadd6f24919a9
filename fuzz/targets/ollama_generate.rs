//! Any bytes as a client's request to Ollama's generate.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_api::core::Roles;
use octet_api::ollama::Call;

fuzz_target!(|data: &[u8]| {
    match octet_api::ollama::generate::parse(data) {
        Ok(Call::Generate(request)) => {
            if let Some(chat) = request.chat() {
                // Refused by name, or fit for a template.
                let _ = chat.template(Roles::default());
            }
        }
        Ok(Call::Load(load)) => assert_eq!(load.response(true, 0)["done"], true),
        Err(e) => assert!(e.message.len() < 2000, "an error quotes little: {}", e.message.len()),
    }
});
