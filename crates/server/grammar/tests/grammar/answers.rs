//! Answers by regexes, grammars and choices; thoughts in front of them; and a matcher's own rules.

use crate::support::{EOS, bytes, compile, ids_of, matcher, takes, text_of, walk};
use octet_grammar::{Error, GrammarSpec};
use proptest::prelude::*;
use serde_json::json;

fn choice(texts: &[&str]) -> GrammarSpec {
    GrammarSpec::Choice(texts.iter().map(|t| t.to_string()).collect())
}

fn allowed(matcher: &mut octet_grammar::Matcher) -> Vec<u32> {
    let mut bits = vec![u32::MAX; 9];
    matcher.mask(&mut bits).unwrap();
    (0..288).filter(|id| bits[id / 32] >> (id % 32) & 1 == 1).map(|id| id as u32).collect()
}

#[test]
fn only_the_choices_are_accepted() {
    let grammar = matcher(&bytes(), choice(&["yes", "yes, really", "no \"quotes\\\n", "é"]));
    for text in ["yes", "yes, really", "no \"quotes\\\n", "é"] {
        assert!(takes(&grammar, &ids_of(text)), "{text}");
    }
    for text in ["", "y", "yes,", "maybe", "Yes", "yes "] {
        assert!(!takes(&grammar, &ids_of(text)), "{text}");
    }
    assert!(takes(&matcher(&bytes(), choice(&["", "a"])), &[]));
    assert!(takes(&matcher(&bytes(), choice(&[""])), &[]));
    assert!(matches!(compile(&bytes(), choice(&[]), false), Err(Error::Choice(_))));
}

#[test]
fn regexes_match_as_a_whole() {
    for (pattern, yes, no) in [
        (
            "^(\\+\\d{1,3} )?\\d{3}-\\d{4}$",
            &["555-1234", "+1 555-1234"][..],
            &["555-123", "x555-1234", "555-12345"][..],
        ),
        ("[a-z/]+", &["a/b", "x"], &["", "A"]),
        ("a|bc", &["a", "bc"], &["abc", "ab"]),
        ("(?i)yes", &["YES", "yes"], &["yess"]),
        (".", &["é", "漢"], &["\n", "ab"]),
        ("", &[""], &["a"]),
        ("a*", &["", "aaaa"], &["b"]),
    ] {
        let grammar = matcher(&bytes(), GrammarSpec::Regex(pattern.into()));
        for (texts, want) in [(yes, true), (no, false)] {
            for text in texts {
                assert_eq!(takes(&grammar, &ids_of(text)), want, "{pattern} {text}");
            }
        }
    }
}

#[test]
fn drawn_texts_match_their_regex() {
    for pattern in
        ["(a|b)*a(a|b){4}", "\\w{2,5}@[a-z]{3}\\.(com|org)", "[^a-c]{3}x?", "\\d{1,3}(,\\d{3})*(\\.\\d+)?"]
    {
        let grammar = matcher(&bytes(), GrammarSpec::Regex(pattern.into()));
        let full = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        for seed in 1..=40u64 {
            let text = text_of(&walk(&grammar, seed, 30));
            assert!(full.is_match(&text), "{pattern} {text:?}");
        }
    }
}

#[test]
fn grammars_are_followed() {
    let lark = r#"
        start: sum
        sum: product | sum ("+" | "-") product
        product: NUMBER | "(" sum ")"
        NUMBER: /[0-9]+/
    "#;
    let grammar = matcher(&bytes(), GrammarSpec::Lark(lark.into()));
    for text in ["1", "1+(2-33)-4", "((1))"] {
        assert!(takes(&grammar, &ids_of(text)), "{text}");
    }
    for text in ["", "1+", "(1", "1)", "a"] {
        assert!(!takes(&grammar, &ids_of(text)), "{text}");
    }
    let with_schema = "start: \"x=\" %json {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \
        \"required\": [\"a\"], \"additionalProperties\": false}";
    let grammar = matcher(&bytes(), GrammarSpec::Lark(with_schema.into()));
    assert!(takes(&grammar, &ids_of("x={\"a\": 1}")) && !takes(&grammar, &ids_of("x={}")));
}

/// llguidance takes special tokens for bytes that no text holds, and so for part of what a regex is not.
#[test]
fn complements_hold_no_special_tokens() {
    for (lark, takes_it, not) in [
        ("start: ~\"a\"", "b", "a"),
        ("start: \"x\" X\nX: ~/a.*/", "xb", "xa"),
        ("start: X\nX: ~/(.|\\n)*!(.|\\n)*/", "no", "no!"),
    ] {
        let grammar = matcher(&bytes(), GrammarSpec::Lark(lark.into()));
        assert!(takes(&grammar, &ids_of(takes_it)), "{lark}");
        assert!(!takes(&grammar, &ids_of(not)), "{lark}");
        for seed in 1..=40u64 {
            let ids = walk(&grammar, seed, 12);
            assert!(ids.iter().all(|&id| id <= 256), "{lark}: {ids:?}");
        }
    }
}

#[test]
fn errors_name_the_field() {
    for (spec, part) in [
        (GrammarSpec::Regex("(".into()), "unclosed group"),
        (GrammarSpec::Regex("(?=a)".into()), "look-around"),
        (GrammarSpec::Regex("(a)\\1".into()), "backreferences"),
        (GrammarSpec::Lark("start: nowhere".into()), "nowhere"),
        (GrammarSpec::Lark("start: \"a".into()), "1"),
        (GrammarSpec::Lark(String::new()), "start"),
        (GrammarSpec::Lark("start: ~\"a\" <think>".into()), "one of both"),
        (GrammarSpec::JsonSchema(json!([])), "expected a schema"),
        (
            GrammarSpec::JsonSchema(json!({"type": "object", "properties": {"a": {"if": {}}}})),
            "'#/properties/a': 'if' is not supported",
        ),
        (GrammarSpec::JsonSchema(json!({"type": "text"})), "'text'"),
        (GrammarSpec::JsonSchema(json!({"$ref": "#/$defs/gone"})), "points to nothing"),
        (GrammarSpec::JsonSchema(json!({"$ref": "https://example.com/s.json"})), "another document"),
        (GrammarSpec::JsonSchema(json!(false)), "the JSON schema"),
    ] {
        let said = compile(&bytes(), spec.clone(), false).unwrap_err().to_string();
        assert!(said.contains(part), "{spec:?}: {said}");
    }
}

#[test]
fn the_grammar_begins_after_the_reasoning() {
    for spec in [
        choice(&["{}"]),
        GrammarSpec::JsonObject,
        GrammarSpec::Regex("\\{\\}".into()),
        GrammarSpec::Lark("start: \"{}\"".into()),
    ] {
        let grammar = compile(&bytes(), spec, true).unwrap().matcher();
        for text in ["</think>{}", "Hm.\n</think>\n\n{}", "{\"a\": no JSON\n</think>\n{}"] {
            assert!(takes(&grammar, &ids_of(text)), "{text}");
        }
        for text in ["{}", "</think>", "", "x</think>y</think>{}", "x</think>\n\n\n{}", "</think>{}</think>"]
        {
            assert!(!takes(&grammar, &ids_of(text)), "{text}");
        }
        let mut thinking = grammar.clone();
        assert!(!allowed(&mut thinking).contains(&EOS) && !thinking.may_end().unwrap());
        let e = thinking.accept(EOS).unwrap_err().to_string();
        assert!(e.contains("reasoning"), "{e}");
    }
}

/// A vocabulary in which `</think>` is no token of its own.
#[test]
fn reasoning_may_end_with_plain_text() {
    let tokens = (0..=255).map(|b| octet_grammar::Token::Text(vec![b]));
    let all = tokens.chain([octet_grammar::Token::Special("<|im_end|>".into())]);
    let vocabulary =
        octet_grammar::Vocabulary::new(all, &[256], |s| Some(s.bytes().map(u32::from).collect())).unwrap();
    let grammar = compile(&vocabulary, choice(&["yes"]), true).unwrap().matcher();
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert!(takes(&grammar, &ids("a < b</thin k</think>\n\nyes")));
    assert!(!takes(&grammar, &ids("yes")) && !takes(&grammar, &ids("a</think>no")));
}

#[test]
fn a_complete_answer_must_end() {
    let mut m = matcher(&bytes(), choice(&["ab"]));
    assert!(!m.is_finished() && allowed(&mut m) == [97]);
    assert!(matches!(m.accept(98), Err(Error::Token { id: 98, .. })), "a refusal");
    m.accept(97).unwrap();
    assert_eq!((m.forced(), m.may_end().unwrap()), (vec![98], false));
    m.accept(98).unwrap();
    assert!(m.is_finished() && m.may_end().unwrap() && allowed(&mut m) == [EOS]);
    assert!(m.accept(98).is_err());
    m.accept(EOS).unwrap();
    assert!(m.is_finished() && allowed(&mut m) == [EOS]);
    assert!(m.accept(EOS).is_err());
}

#[test]
fn clones_advance_independently() {
    let mut one = matcher(&bytes(), GrammarSpec::JsonObject);
    ids_of("{\"a\": ").into_iter().for_each(|id| one.accept(id).unwrap());
    let mut other = one.clone();
    ids_of("[1]}").into_iter().for_each(|id| one.accept(id).unwrap());
    ids_of("\"x\", \"b\": {}").into_iter().for_each(|id| other.accept(id).unwrap());
    assert!(one.is_finished() && !other.is_finished());
    assert!(!other.may_end().unwrap());
    other.accept(u32::from(b'}')).unwrap();
    assert!(other.is_finished());
}

#[test]
fn unusable_vocabularies_are_refused() {
    use octet_grammar::{Token, Vocabulary};
    let text = || Token::Text(b"a".to_vec());
    for (tokens, eos, part) in [
        (vec![], vec![0], "0 ids"),
        (vec![text()], vec![], "no token that ends"),
        (vec![text()], vec![1], "beyond its 1 ids"),
    ] {
        let said = Vocabulary::new(tokens, &eos, |_| None).unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Requests bring anything: it compiles or is refused, and never panics.
    #[test]
    fn nothing_panics(text in r#"[a-z{}()\[\]|*+?^$\\/"&~:<>@#%,.0-9 \n-]{0,24}"#, kind in 0..3) {
        let spec = match kind {
            0 => GrammarSpec::Regex(text),
            1 => GrammarSpec::Lark(format!("start: {text}")),
            _ => GrammarSpec::Choice(vec![text.clone(), format!("{text}{text}")]),
        };
        if let Err(e) = compile(&bytes(), spec, false) {
            prop_assert!(!e.to_string().contains("please report"), "{}", e);
        }
    }
}
