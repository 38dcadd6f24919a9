//! `routed_experts` of a choice, if `return_routed_experts` is set. Written by `chat` and `completions`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::core::RoutedExperts;

/// Experts of the tokens of an answer or a piece of it.
#[derive(Serialize)]
pub(crate) struct WireExperts<'a> {
    layers: usize,
    experts_per_token: usize,
    tokens: &'a [String],
    /// Base64 of little-endian 16-bit numbers `[tokens, layers, experts_per_token]`.
    experts: String,
    /// Base64 of bytes `[tokens, layers]`; 255 means 1.
    shared_gate: String,
}

impl<'a> WireExperts<'a> {
    pub(crate) fn new(r: &'a RoutedExperts) -> Self {
        let bytes: Vec<u8> = r.experts.iter().flat_map(|e| e.to_le_bytes()).collect();
        Self {
            layers: r.layers,
            experts_per_token: r.per_token,
            tokens: &r.tokens,
            experts: STANDARD.encode(bytes),
            shared_gate: STANDARD.encode(&r.gates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_written_compactly() {
        let mut all = RoutedExperts::default();
        for token in ["a", "b"] {
            all.extend(&RoutedExperts {
                layers: 1,
                per_token: 2,
                tokens: vec![token.into()],
                experts: vec![258, 3],
                gates: vec![128],
            });
        }
        let written = serde_json::to_value(WireExperts::new(&all)).unwrap();
        let want = serde_json::json!({
            "layers": 1, "experts_per_token": 2, "tokens": ["a", "b"], "experts": "AgEDAAIBAwA=", "shared_gate": "gIA=",
        });
        assert_eq!(written, want);
    }
}
