//! Stop strings in streamed text: text is emitted as soon as it cannot be part of one. Called when a sequence's tokens are converted
//! to text.

use super::SamplerError;

/// Finds the first of several strings in text that arrives in pieces. Never emits a part of a stop string, and holds other text back
/// only while it could become one.
///
/// The first match is the one that is complete first, as generation ends there; of several that end together, the longest. So the
/// result does not depend on how the text was split.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Emitted text that is still borrowed, then held-back text.
    text: String,
    /// Number of bytes of `text` emitted.
    given: usize,
    matched: Option<usize>,
}

/// The result of adding text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match<'a> {
    /// Text that can be emitted.
    pub emit: &'a str,
    /// A stop string was found, now or before; nothing more will be emitted.
    pub stopped: bool,
}

/// A stop string, and how much of it the text ends with (Knuth, Morris and Pratt 1977).
#[derive(Debug, Clone)]
struct Stop {
    text: String,
    /// For each prefix of `text`, by its length less one: the length of its longest proper border.
    borders: Vec<usize>,
    /// Length of the prefix of `text` that the input ends with.
    held: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let mut stop = Self { borders: vec![0], text, held: 0 };
        // The table is computed by matching the string with itself.
        for i in 1..stop.text.len() {
            stop.push(stop.text.as_bytes()[i]);
            stop.borders.push(stop.held);
        }
        stop.held = 0;
        stop
    }

    /// Adds a byte; true if the input now ends with the whole string.
    fn push(&mut self, byte: u8) -> bool {
        let text = self.text.as_bytes();
        while self.held > 0 && text[self.held] != byte {
            self.held = self.borders[self.held - 1];
        }
        if text[self.held] == byte {
            self.held += 1;
        }
        self.held == text.len()
    }
}

impl StopStrings {
    /// Fails for an empty string, which every text ends with.
    pub fn new(stops: Vec<String>) -> Result<Self, SamplerError> {
        if stops.iter().any(String::is_empty) {
            return Err(SamplerError::Setting {
                field: "stop",
                value: "an empty string".into(),
                expected: "strings of at least one character".into(),
            });
        }
        let stops = stops.into_iter().map(Stop::new).collect();
        Ok(Self { stops, text: String::new(), given: 0, matched: None })
    }

    /// Whether there are no strings to find.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Bytes of text that may begin a stop string, and were not given yet.
    pub fn held(&self) -> usize {
        self.text.len() - self.given
    }

    /// Adds text. Ignored after a match.
    pub fn push(&mut self, piece: &str) -> Match<'_> {
        self.drop_returned();
        if self.matched.is_some() {
            return Match { emit: "", stopped: true };
        }
        let held = self.text.len();
        self.text.push_str(piece);
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest = 0;
            for (s, stop) in self.stops.iter_mut().enumerate() {
                if stop.push(byte) && stop.held > longest {
                    longest = stop.held;
                    self.matched = Some(s);
                }
            }
            if self.matched.is_some() {
                self.text.truncate(held + i + 1 - longest);
                self.given = self.text.len();
                return Match { emit: &self.text, stopped: true };
            }
        }
        // A stop string begins at a character boundary, and so does the held-back text.
        let keep = self.stops.iter().map(|s| s.held).max().unwrap_or(0);
        self.given = self.text.len() - keep;
        Match { emit: &self.text[..self.given], stopped: false }
    }

    /// Ends the text: emits what was held back.
    pub fn flush(&mut self) -> &str {
        self.drop_returned();
        self.given = self.text.len();
        for stop in &mut self.stops {
            stop.held = 0;
        }
        &self.text
    }

    /// The stop string that was found.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|s| self.stops[s].text.as_str())
    }

    fn drop_returned(&mut self) {
        self.text.drain(..self.given);
        self.given = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text before the match and the string matched, by looking at every end.
    fn naive<'a>(text: &str, stops: &'a [String]) -> Option<(String, &'a str)> {
        let ends = (0..=text.len()).filter(|&i| text.is_char_boundary(i));
        ends.flat_map(|end| {
            stops.iter().filter(move |s| text[..end].ends_with(*s)).max_by_key(|s| s.len()).map(|s| (end, s))
        })
        .map(|(end, s)| (text[..end - s.len()].to_string(), s.as_str()))
        .next()
    }

    /// Pushes pieces; everything that went out, after each, and whether it stopped.
    fn run(stops: &[String], pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
        let mut m = StopStrings::new(stops.to_vec()).unwrap();
        let (mut out, mut after) = (String::new(), vec![]);
        for p in pieces {
            out.push_str(m.push(p).emit);
            after.push(out.clone());
        }
        out.push_str(m.flush());
        assert_eq!(m.flush(), "");
        (after, out, m.matched().map(str::to_string))
    }

    #[test]
    fn a_stop_string_over_many_pieces() {
        let stops = ["</end>".to_string()];
        let (after, out, matched) = run(&stops, &["a<", "/e", "b</", "e", "n", "d", ">c", "d"]);
        assert_eq!(after, ["a", "a", "a</eb", "a</eb", "a</eb", "a</eb", "a</eb", "a</eb"]);
        assert_eq!((out.as_str(), matched.as_deref()), ("a</eb", Some("</end>")));
    }

    #[test]
    fn held_text_is_emitted_at_the_end() {
        let (after, out, matched) = run(&["\n\nUser:".to_string()], &["yes\n", "\nUse"]);
        assert_eq!(after, ["yes", "yes"]);
        assert_eq!((out.as_str(), matched), ("yes\n\nUse", None));
    }

    #[test]
    fn the_first_complete_stop_string_wins() {
        let stops = ["abcd", "bc", "c"].map(String::from);
        let (_, out, matched) = run(&stops, &["xabcd"]);
        assert_eq!((out.as_str(), matched.as_deref()), ("xa", Some("bc")));
    }

    #[test]
    fn no_stop_string_holds_no_text_and_an_empty_one_is_refused() {
        let mut m = StopStrings::new(vec![]).unwrap();
        assert_eq!(m.push("text"), Match { emit: "text", stopped: false });
        let e = StopStrings::new(vec!["x".into(), String::new()]).unwrap_err().to_string();
        assert_eq!(e, "stop is an empty string; expected strings of at least one character");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn equals_a_naive_search_for_any_split(
            text in "[abé€😀]{0,40}",
            stops in prop::collection::vec("[abé€😀]{1,5}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bounds: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|c| bounds[c.index(bounds.len())]).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let (after, out, matched) = run(&stops, &pieces);
            let (want, stop) = match naive(&text, &stops) {
                Some((before, s)) => (before, Some(s.to_string())),
                None => (text.clone(), None),
            };
            prop_assert_eq!(&out, &want);
            prop_assert_eq!(&matched, &stop);
            // Held back is only what starts a stop string.
            for (cut, emitted) in cuts[1..].iter().zip(&after) {
                prop_assert!(want.starts_with(emitted.as_str()));
                if *cut <= want.len() {
                    let held = &text[emitted.len()..*cut];
                    prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)), "{held}");
                }
            }
        }
    }
}
