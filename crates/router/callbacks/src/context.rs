//! W3C Trace Context: the trace of a request. Created by the server for each request; sent along to providers.

use std::fmt;

/// A request's place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: [u8; 16],
    /// The request's own span.
    pub span: [u8; 8],
    /// The span that it is a part of.
    pub parent: Option<[u8; 8]>,
    /// The sampled flag.
    pub sampled: bool,
}

impl TraceContext {
    /// A span of the trace in the header `traceparent`, or of a new one. `random` generates ids; zero is invalid, and is not used.
    pub fn new(traceparent: Option<&str>, mut random: impl FnMut() -> u64) -> Self {
        let mut chance = || loop {
            match random() {
                0 => {}
                n => break n.to_be_bytes(),
            }
        };
        let span = chance();
        if let Some((trace, parent, sampled)) = traceparent.and_then(parse) {
            return Self { trace, span, parent: Some(parent), sampled };
        }
        let mut trace = [0; 16];
        trace[..8].copy_from_slice(&chance());
        trace[8..].copy_from_slice(&chance());
        Self { trace, span, parent: None, sampled: true }
    }

    /// The header for requests to providers.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-0{}", Hex(&self.trace), Hex(&self.span), u8::from(self.sampled))
    }

    /// The trace, as a text.
    pub fn trace_id(&self) -> String {
        Hex(&self.trace).to_string()
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; later versions may add more.
fn parse(text: &str) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut parts = text.trim().split('-');
    let version: [u8; 1] = bytes(parts.next()?)?;
    let (trace, parent, flags): ([u8; 16], [u8; 8], [u8; 1]) =
        (bytes(parts.next()?)?, bytes(parts.next()?)?, bytes(parts.next()?)?);
    let is_known = version[0] != 0xff && (version[0] != 0 || parts.next().is_none());
    let names = trace != [0; 16] && parent != [0; 8];
    (is_known && names).then_some((trace, parent, flags[0] & 1 == 1))
}

/// Lower-case digits only, as in the standard.
fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let is_hex = hex.len() == 2 * N && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    is_hex.then_some(out)
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_on_where_its_name_is_good() {
        // The example of the standard.
        let sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut n = 0;
        let mut random = || {
            n += 1;
            n - 1
        };
        let context = TraceContext::new(Some(sent), &mut random);
        assert_eq!(context.traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01");
        assert_eq!(context.parent, Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
        assert!(!TraceContext::new(Some(&sent.replace("-01", "-00")), &mut random).sampled);
        assert!(
            TraceContext::new(Some(&format!("{}-more", sent.replacen("00", "cc", 1))), &mut random)
                .parent
                .is_some()
        );
        for wrong in [
            "",
            "00",
            &sent.to_uppercase(),
            &sent[1..],
            &format!("{sent}-more"),
            &sent.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            let context = TraceContext::new(Some(wrong), &mut random);
            assert_eq!((context.parent, context.sampled), (None, true), "{wrong}");
            assert_ne!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        }
    }
}
