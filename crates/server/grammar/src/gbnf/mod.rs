//! Translates GBNF, llama.cpp's grammar notation, for llguidance: to a regex if no rule is recursive, else to its variant of Lark.
//!
//! GBNF is based on characters; llguidance splits text into lexemes first, and takes the longest. To allow the same texts, a lexeme is
//! one character, unless a longer one is distinguished from all others by its first character and is never a prefix of another of its
//! texts (`lexemes`).

mod lexemes;
mod parse;

use crate::limits::{LARK_BYTES_MAX, REGEX_BYTES_MAX};
use crate::{Error, lark};
use lexemes::Lexemes;
use parse::{Grammar, Node};

/// A translated grammar.
#[derive(Debug, PartialEq, Eq)]
pub enum Translated {
    /// A regular expression for the whole text.
    Regex(String),
    /// llguidance's variant of Lark.
    Lark(String),
}

/// Translates a grammar from a request.
///
/// # Errors
/// Invalid GBNF, with the line; and features without a counterpart, by name.
pub fn translate(text: &str) -> Result<Translated, Error> {
    if text.len() > LARK_BYTES_MAX {
        return Err(Error::Lark(format!("it has {} bytes; the maximum is {LARK_BYTES_MAX}", text.len())));
    }
    let grammar = parse::parse(text)?;
    if grammar.is_regular(grammar.root) {
        let mut out = String::new();
        if grammar.regex(&Node::Rule(grammar.root), REGEX_BYTES_MAX, &mut out) {
            return Ok(Translated::Regex(out));
        }
    }
    let lexemes = Lexemes::choose(&grammar);
    let mut out = format!("start: r{}\n", grammar.root);
    for (i, body) in grammar.bodies.iter().enumerate() {
        out.push_str(&format!("r{i}: "));
        write(&grammar, &lexemes, body, &mut out);
        out.push('\n');
    }
    Ok(Translated::Lark(out))
}

fn write(grammar: &Grammar, lexemes: &Lexemes, node: &Node, out: &mut String) {
    match node {
        Node::Chars(set) => {
            out.push('/');
            set.write(out);
            out.push_str("/ ");
        }
        Node::Rule(i) => out.push_str(&format!("r{i} ")),
        Node::Seq(items) => {
            let mut at = 0;
            while at < items.len() {
                let len = lexemes.at(&items[at..]);
                if len > 0 {
                    out.push('/');
                    grammar.regex(&Node::Seq(items[at..at + len].to_vec()), usize::MAX, out);
                    out.push_str("/ ");
                    at += len;
                } else {
                    write(grammar, lexemes, &items[at], out);
                    at += 1;
                }
            }
            if items.is_empty() {
                out.push_str(&lark::literal(""));
            }
        }
        Node::Alt(all) => {
            out.push('(');
            for (i, one) in all.iter().enumerate() {
                out.push_str(if i > 0 { " | " } else { "" });
                write(grammar, lexemes, one, out);
            }
            out.push_str(") ");
        }
        Node::Repeat(inner, least, most) => {
            out.push('(');
            write(grammar, lexemes, inner, out);
            out.push(')');
            out.push_str(&counts(*least, *most));
            out.push(' ');
        }
    }
}

/// `*`, `+`, `?` or counts.
fn counts(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(text: &str) -> String {
        match translate(text).unwrap() {
            Translated::Regex(r) => r,
            Translated::Lark(l) => panic!("{l}"),
        }
    }

    #[test]
    fn without_recursion_it_is_a_regex() {
        for (text, good, bad) in [
            ("root ::= \"yes\" | \"no\"", &["yes", "no"][..], &["", "yesno"][..]),
            ("root ::= a+ # more\na ::= [a-c0] [^x] ; ", &[], &[]),
            (
                "root ::= item{2,3} \"\\n\"?\nitem ::= \"- \" [^\\n]+ \"\\n\"\n",
                &["- a\n- b\n", "- a\n- b\n- c\n\n"],
                &["- a\n"],
            ),
            ("root ::= (\"a\" |\n \"b\")* \"\\x41\\u0042\\U00000043\"", &["ABC", "abaABC"], &["AB"]),
            ("root ::= .{,2} [\\]\\\\-]", &["]", "\n\n\\", "é-"], &["abc"]),
            ("root ::= \"/\" \"\\\"\" \"(\" \"é\"", &["/\"(é"], &["/\"("]),
        ] {
            if good.is_empty() {
                assert!(translate(text).is_err(), "{text}");
                continue;
            }
            let pattern = regex(text);
            let compiled = ::regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
            for g in good {
                assert!(compiled.is_match(g), "{text}: {pattern} does not match {g:?}");
            }
            for b in bad {
                assert!(!compiled.is_match(b), "{text}: {pattern} matches {b:?}");
            }
        }
    }

    #[test]
    fn with_recursion_long_lexemes_are_those_that_nothing_else_can_be() {
        let json = concat!(
            "root ::= value\n",
            "value ::= list | string | \"true\" | number\n",
            "list ::= \"[\" (value (\",\" value)*)? \"]\"\n",
            "string ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"\\\\n])* \"\\\"\" ws\n",
            "number ::= [0-9]+\n",
            "ws ::= \" \"?\n",
        );
        let Translated::Lark(lark) = translate(json).unwrap() else { panic!("a regex") };
        // The string up to its end, and "true"; digits one at a time.
        assert!(lark.contains(r"/(?:\x{22}(?:"), "{lark}");
        assert!(lark.contains(r"/(?:true)/"), "{lark}");
        assert!(lark.contains("(/[0-9]/ )+"), "{lark}");
        // "ab" begins like one of the letters: a character at a time.
        let Translated::Lark(lark) = translate("root ::= \"(\" root \")\" | \"ab\" | [a-z] [a-z]").unwrap()
        else {
            panic!("a regex")
        };
        assert!(!lark.contains("ab"), "{lark}");
    }

    /// Each would take years, or all memory, written out.
    #[test]
    fn short_grammars_of_long_texts_are_translated() {
        let doubled = |end: &str| {
            let rules = (0..40).map(|i| format!("a{i} ::= a{} a{}\n", i + 1, i + 1));
            format!("root ::= a0 a0\n{}a40 ::= {end}\n", rules.collect::<String>())
        };
        let repeated =
            |what: &str| format!("root ::= (((({what}){{2000}}){{2000}}){{2000}}){{2000}} \"a\" root?");
        for text in [doubled("\"\""), doubled("\"a\""), repeated("\"\""), repeated("\"a\"")] {
            assert!(translate(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_long_text_is_translated() {
        let text = format!("root ::= \"{}\" root?", "ab".repeat(20_000));
        let Translated::Lark(lark) = translate(&text).unwrap() else { panic!("a regex") };
        assert!(lark.contains("/(?:abab"), "{}", &lark[..100]);
    }

    #[test]
    fn grammar_errors_have_a_position() {
        for (text, said) in [
            ("root ::= [a", "line 1"),
            ("root ::= \"a", "line 1"),
            ("root ::= a", "'a' is not defined"),
            ("a ::= \"x\"", "'root'"),
            ("root ::= \"a\"\nb", "line 2"),
            ("root ::= \"\\q\"", "escape"),
            ("root ::= <think>", "token"),
            ("root ::= \"a\"{3,2}", "{3,2}"),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root ::= [z-a]", "z-a"),
            ("root ::= (\"a\"", "line 1"),
            ("root ::= *", "line 1"),
        ] {
            let e = translate(text).unwrap_err().to_string();
            assert!(e.contains(said), "{text}: {e}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
        assert!(translate(&deep).unwrap_err().to_string().contains("nested"));
    }
}
