//! Resolves model names.

use std::collections::HashMap;

use octet_keys::matches_pattern;

/// Finds a model by name. A tag that Ollama's clients add is ignored. A name with `*` is a pattern; of several that match, the one with
/// the most characters besides `*` wins, as in a router's groups.
pub fn find(names: &HashMap<String, usize>, name: &str) -> Option<usize> {
    let exact = names.get(name).or_else(|| names.get(name.strip_suffix(":latest")?));
    let specificity = |pattern: &str| pattern.chars().filter(|c| *c != '*').count();
    let is_match = |pattern: &str| pattern.contains('*') && matches_pattern(pattern, name);
    let matching = || names.iter().filter(|(p, _)| is_match(p)).max_by_key(|(p, _)| (specificity(p), *p));
    exact.or_else(|| matching().map(|(_, index)| index)).copied()
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn names_with_stars_stand_for_many() {
        for (pattern, name, is) in [
            ("claude-*", "claude-haiku-4-5", true),
            ("claude-*", "claude-", true),
            ("claude-*", "my-claude-x", false),
            ("*", "anything", true),
            ("*-mini*", "gpt-5-mini-2026", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("gpt-5", "gpt-5-mini", false),
        ] {
            let names = [(pattern.to_string(), 0)].into();
            assert_eq!(find(&names, name).is_some(), is, "{pattern} {name}");
        }
    }

    #[test]
    fn the_most_specific_pattern_wins() {
        let names = [("**a**", 0), ("ba*", 1), ("*", 2), ("bar", 3)].map(|(p, i)| (p.to_string(), i)).into();
        for (name, found) in [("bar", 3), ("bat", 1), ("cat", 0), ("dog", 2), ("bar:latest", 3)] {
            assert_eq!(find(&names, name), Some(found), "{name}");
        }
    }
}
