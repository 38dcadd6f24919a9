//! Synthetic prompts of about a given number of tokens.

use crate::random::{STEP, mixed};

/// Each is one token in common tokenizers, with the space before it.
const WORDS: [&str; 96] = [
    "about", "after", "again", "air", "all", "animal", "answer", "area", "ask", "back", "book", "boy",
    "bring", "call", "car", "care", "carry", "change", "city", "close", "cold", "color", "come", "country",
    "cut", "dark", "day", "door", "draw", "earth", "eat", "end", "even", "eye", "face", "family", "farm",
    "father", "fire", "fish", "five", "food", "form", "four", "friend", "game", "girl", "give", "gold",
    "green", "group", "hand", "hard", "head", "help", "high", "home", "horse", "house", "idea", "king",
    "land", "large", "letter", "life", "light", "line", "love", "map", "moon", "morning", "mother", "music",
    "name", "night", "north", "paper", "part", "place", "plan", "point", "red", "river", "road", "rock",
    "room", "school", "sea", "ship", "snow", "song", "story", "street", "time", "tree", "water",
];

/// The end of a prompt, which makes models answer at length.
const ASK: &str = "\n\nTell a long story in which all of these words occur.";
/// Tokens of that, and of a chat template around a message.
const AROUND: usize = 20;

/// A prompt of about `tokens` tokens. The first `shared` of them depend on `run` only, the others on `request` too, so that prompts
/// share no other prefix that a cache could use.
pub fn prompt(tokens: usize, shared: usize, run: u64, request: u64) -> String {
    let words = tokens.saturating_sub(AROUND).max(1);
    let shared = shared.min(words);
    let all = words_from(run).take(shared).chain(words_from(run ^ mixed(request)).take(words - shared));
    all.collect::<Vec<_>>().join(" ") + ASK
}

/// An endless sequence of random words.
fn words_from(seed: u64) -> impl Iterator<Item = &'static str> {
    (0u64..)
        .map(move |i| WORDS[(mixed(seed.wrapping_add(i.wrapping_mul(STEP))) % WORDS.len() as u64) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(a: &str, b: &str) -> usize {
        a.split(' ').zip(b.split(' ')).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_are_as_long_as_they_shall_be() {
        for tokens in [1, 20, 21, 100, 5000] {
            let words = prompt(tokens, 0, 1, 2).strip_suffix(ASK).unwrap().split(' ').count();
            assert_eq!(words, tokens.saturating_sub(20).max(1), "{tokens}");
        }
    }

    #[test]
    fn beginnings_differ_but_for_the_shared_part() {
        for request in 0..200 {
            let (a, b) = (prompt(500, 0, 9, request), prompt(500, 0, 9, request + 1));
            assert!(common(&a, &b) < 8, "{a}\n{b}");
            let shared = common(&prompt(500, 300, 9, request), &prompt(500, 300, 9, request + 1));
            assert!((300..308).contains(&shared), "{shared}");
        }
        assert!(common(&prompt(500, 300, 9, 1), &prompt(500, 300, 10, 1)) < 8, "another run");
        assert_eq!(prompt(500, 900, 9, 1), prompt(500, 900, 9, 2), "more shared than there is");
    }
}
