//! Prometheus' older text format, from OpenMetrics: for scrapers that ask for `text/plain` only.

use std::borrow::Cow;

/// The media type.
pub const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a client with this `Accept` header reads the older format, and not OpenMetrics.
pub fn wants_plain(accept: &str) -> bool {
    accept.contains("text/plain") && !accept.contains("openmetrics-text")
}

/// The same metrics in the older format: there the name of a counter ends with `_total` in its description, too, and there is no unit and
/// no end. Names of Octet's own have no colon, which `promtool check metrics` wants; vLLM's keep theirs, as clients look for them.
pub fn plain(text: &str) -> String {
    let is_counter = |name: &str| {
        let name = name.replacen(OWN_PLAIN, OWN, 1);
        text.contains(&format!("# TYPE {name} counter\n"))
    };
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let line = &*without_colon(line);
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF"), ..) | (Some("#"), Some("UNIT"), ..) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) if is_counter(name) => {
                out += &format!("# {what} {name}_total {rest}");
            }
            (Some("#"), Some("TYPE"), Some(name), Some("info")) => {
                out += &format!("# TYPE {name}_info gauge");
            }
            (Some("#"), Some("TYPE"), Some(name), Some("unknown")) => {
                out += &format!("# TYPE {name} untyped")
            }
            _ => out += line,
        }
        out.push('\n');
    }
    out
}

/// The beginning of Octet's own names, in OpenMetrics and in the older format.
const OWN: &str = "octet:";
const OWN_PLAIN: &str = "octet_";

/// The line with the name of the older format.
fn without_colon(line: &str) -> Cow<'_, str> {
    let start =
        ["# HELP ", "# TYPE ", "# UNIT "].into_iter().find(|start| line.starts_with(start)).unwrap_or("");
    match line[start.len()..].strip_prefix(OWN) {
        Some(rest) => format!("{start}{OWN_PLAIN}{rest}").into(),
        None => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_the_names_of_their_samples() {
        let text = "# HELP a Requests.\n# TYPE a counter\na_total{x=\"# EOF\"} 3\n# HELP b_seconds Time.\n# TYPE b_seconds histogram\n\
                    # UNIT b_seconds seconds\nb_seconds_sum 1.0\nb_seconds_count 1\nb_seconds_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let expected = "# HELP a_total Requests.\n# TYPE a_total counter\na_total{x=\"# EOF\"} 3\n# HELP b_seconds Time.\n\
                        # TYPE b_seconds histogram\nb_seconds_sum 1.0\nb_seconds_count 1\nb_seconds_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(plain(text), expected);
        let own = "# HELP octet:a A.\n# TYPE octet:a counter\noctet:a_total{x=\"octet:a\"} 1\n# TYPE vllm:b gauge\nvllm:b 1\n# EOF\n";
        let expected = "# HELP octet_a_total A.\n# TYPE octet_a_total counter\noctet_a_total{x=\"octet:a\"} 1\n# TYPE vllm:b gauge\nvllm:b 1\n";
        assert_eq!(plain(own), expected);
        assert!(wants_plain("text/plain;version=0.0.4;q=0.5") && !wants_plain("*/*"));
        assert!(!wants_plain(
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
    }
}
