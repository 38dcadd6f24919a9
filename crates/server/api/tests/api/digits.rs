//! Numbers with more digits than a JSON value keeps: what is read and written again is the same, and no other JSON is changed.

use octet_api::digits;
use proptest::prelude::*;
use serde_json::Value;

/// An object as read and written again.
fn again(json: &str) -> Result<String, serde_json::Error> {
    digits::read(json.as_bytes()).map(|object| digits::text(&object.into()))
}

#[test]
fn numbers_keep_all_digits_where_clients_put_their_own() {
    let numbers = "[1e400,-1e-400,18446744073709551616,0.1234567890123456789,1234567890.12345678901,1,-9223372036854775808]";
    let body = format!(
        "{{\"messages\":[{{\"input\":{{\"a\":{numbers}}}}}],\"tools\":[{{\"parameters\":{{\"enum\":{numbers}}}}}]}}"
    );
    assert_eq!(again(&body).unwrap(), body);
    // Elsewhere they are read as before.
    assert!(again("{\"temperature\":1e400}").is_err());
    assert_eq!(again("{\"t\":0.1234567890123456789}").unwrap(), "{\"t\":0.12345678901234568}");
    // A client's own text never stands for a number.
    let body = "{\"input\":[1e400,\"\u{fdef}number:5\",\"\u{fdef}0:5\"]}";
    assert_eq!(again(body).unwrap(), body);
}

proptest! {
    #[test]
    fn other_json_is_read_as_before(json in r#"[{}\[\]",:\\ 0-9.e+-]{0,24}"#) {
        let body = format!("{{\"input\":{json}}}");
        match serde_json::from_str::<Value>(&body) {
            Ok(Value::Object(read)) => {
                // Up to digits that a double does not have.
                let object = digits::read(body.as_bytes()).unwrap();
                let written: Value = serde_json::from_str(&digits::text(&object.into())).unwrap();
                prop_assert_eq!(written, Value::Object(read));
            }
            Ok(_) => {}
            Err(_) => {
                let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok();
                prop_assert!(is_json || digits::read(body.as_bytes()).is_err());
            }
        }
    }
}
