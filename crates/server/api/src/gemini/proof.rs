//! Signatures of reasoning (`thoughtSignature`) for clients of this dialect, from any provider.
//!
//! Gemini's own are sent unchanged. Others are wrapped in base64, like Gemini's, so that clients send them back.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::{Value, json};

use super::SIGNED;
use crate::core::ReasoningPart;

/// Prefix of wrapped signatures.
const WRAPPED: &[u8] = b"octet:";

/// The combined signature; `None` if there are none.
pub(super) fn wrap(proofs: &[ReasoningPart]) -> Option<String> {
    if let [ReasoningPart::Text { signature: Some(signature), .. }] = proofs
        && let Some(own) = signature.strip_prefix(SIGNED)
    {
        return Some(own.into());
    }
    let one = |proof: &ReasoningPart| match proof {
        ReasoningPart::Text { signature, .. } => signature.as_ref().map(|s| json!({"signature": s})),
        ReasoningPart::Redacted(data) => Some(json!({"redacted": data})),
    };
    let all: Vec<Value> = proofs.iter().filter_map(one).collect();
    if all.is_empty() {
        return None;
    }
    let text = [WRAPPED, Value::from(all).to_string().as_bytes()].concat();
    Some(STANDARD.encode(text))
}

/// The signatures in a combined one.
pub(super) fn unwrap(signature: &str) -> Vec<ReasoningPart> {
    let text = |signature: String| ReasoningPart::Text { text: String::new(), signature: Some(signature) };
    // Python clients send another base64 alphabet than they receive.
    let bytes = STANDARD.decode(signature).or_else(|_| URL_SAFE.decode(signature)).unwrap_or_default();
    let wrapped =
        bytes.strip_prefix(WRAPPED).and_then(|json| serde_json::from_slice::<Vec<Value>>(json).ok());
    let Some(all) = wrapped else { return vec![text(format!("{SIGNED}{signature}"))] };
    let one = |value: &Value| match (value["signature"].as_str(), value["redacted"].as_str()) {
        (Some(signature), _) => Some(text(signature.into())),
        (None, Some(data)) => Some(ReasoningPart::Redacted(data.into())),
        (None, None) => None,
    };
    all.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_survive_a_round_trip() {
        let signed = |s: &str| ReasoningPart::Text { text: String::new(), signature: Some(s.into()) };
        assert_eq!(wrap(&[signed("gemini#QUJD")]).as_deref(), Some("QUJD"));
        for proofs in [
            vec![signed("gemini#QUJD")],
            vec![signed("EqQB/+\"")],
            vec![ReasoningPart::Redacted("x".into()), signed("EqQB")],
        ] {
            let wrapped = wrap(&proofs).expect("there is one");
            assert!(STANDARD.decode(&wrapped).is_ok());
            assert_eq!(unwrap(&wrapped), proofs);
            assert_eq!(unwrap(&wrapped.replace('+', "-").replace('/', "_")).len(), proofs.len());
        }
        assert_eq!(wrap(&[]), None);
        assert_eq!(unwrap("no base64"), [signed("gemini#no base64")]);
    }
}
