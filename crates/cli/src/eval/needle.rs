//! Long texts with one sentence that counts, at a given depth.

use anyhow::ensure;
use serde::Deserialize;

use crate::random::mixed;

/// Longest text, in words.
const WORDS_MAX: usize = 1 << 20;

/// A long text with a sentence hidden in it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needle {
    /// Words of the text around it.
    words: usize,
    /// Where it lies, in percent of the text.
    pub depths: Vec<u32>,
    /// `{{number}}` is the number to find.
    pub sentence: String,
}

const THINGS: [&str; 16] = [
    "pallet", "crate", "barrel", "shelf", "trolley", "ladder", "scale", "parcel", "carton", "ramp", "lamp",
    "door", "basket", "label", "rope", "counter",
];
const STATES: [&str; 12] = [
    "was moved to the back",
    "has a new coat of paint",
    "was counted twice",
    "is waiting for repair",
    "stands beside the window",
    "was cleaned before noon",
    "belongs to the second floor",
    "came from the harbour",
    "will be sold in spring",
    "is heavier than it looks",
    "was returned without a note",
    "fits under the stairs",
];
const WHEN: [&str; 10] = [
    "On Monday",
    "Last winter",
    "This morning",
    "After the stocktaking",
    "Before the holidays",
    "As in other years",
    "According to the list",
    "For some reason",
    "During the night shift",
    "By chance",
];
const COLOURS: [&str; 8] = ["grey", "green", "old", "small", "blue", "narrow", "wooden", "red"];

impl Needle {
    /// Fails for depths and lengths that cannot be.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=WORDS_MAX).contains(&self.words), "needle: 1 to {WORDS_MAX} words, not {}", self.words);
        ensure!(!self.depths.is_empty(), "needle: has no depths");
        for depth in &self.depths {
            ensure!(*depth <= 100, "needle: a depth is 0 to 100 percent, not {depth}");
        }
        Ok(())
    }

    /// The text, with the sentence `depth` percent from its start. It has no other numbers.
    pub fn haystack(&self, sentence: &str, depth: u32, seed: u64) -> String {
        let mut sentences: Vec<String> = Vec::new();
        let (mut words, mut at) = (0, seed);
        while words < self.words {
            at = mixed(at);
            let pick = |list: &[&'static str], shift: u32| list[(at >> shift) as usize % list.len()];
            let next = format!(
                "{} the {} {} {}.",
                pick(&WHEN, 0),
                pick(&COLOURS, 12),
                pick(&THINGS, 24),
                pick(&STATES, 36)
            );
            words += next.split(' ').count();
            sentences.push(next);
        }
        let place = (sentences.len() * depth as usize + 50) / 100;
        sentences.insert(place.min(sentences.len()), sentence.to_string());
        sentences.chunks(12).map(|paragraph| paragraph.join(" ")).collect::<Vec<_>>().join("\n\n")
    }
}

/// A number of five digits.
pub fn number(seed: u64) -> u64 {
    10_000 + mixed(seed ^ 0x6e65_6564_6c65) % 90_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_lies_where_it_shall() {
        let needle = Needle { words: 1000, depths: vec![0], sentence: String::new() };
        for depth in [0, 25, 50, 75, 100] {
            let text = needle.haystack("HERE it is.", depth, 7);
            let before = text.split("HERE").next().unwrap().split_whitespace().count();
            let all = text.split_whitespace().count();
            assert!(before.abs_diff(all * depth as usize / 100) < 30, "{depth}: {before} of {all}");
            assert!(
                (1000..1020).contains(&all)
                    && text.contains("\n\n")
                    && !text.contains(|c: char| c.is_ascii_digit())
            );
        }
        assert_ne!(needle.haystack("x", 0, 1), needle.haystack("x", 0, 2));
        assert!((0..1000).map(number).all(|n| (10_000..100_000).contains(&n)));
    }
}
