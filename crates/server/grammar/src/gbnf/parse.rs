//! Parses GBNF, and finds its regular rules.

use std::collections::HashMap;

use super::counts;
use crate::Error;

/// Maximum nesting of groups.
const DEPTH_MAX: usize = 64;
/// Maximum repetition count; llama.cpp's.
const REPEAT_MAX: u32 = 2000;

/// A set of characters, as ranges.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    /// Sorted, without overlaps; negation is resolved.
    pub ranges: Vec<(u32, u32)>,
}

const LAST: u32 = 0x10_FFFF;

impl Set {
    fn new(mut ranges: Vec<(u32, u32)>, negated: bool) -> Self {
        ranges.sort_unstable();
        let mut out: Vec<(u32, u32)> = Vec::new();
        for (a, b) in ranges {
            match out.last_mut() {
                Some(last) if a <= last.1.saturating_add(1) => last.1 = last.1.max(b),
                _ => out.push((a, b)),
            }
        }
        if negated {
            let mut from = 0;
            let mut rest = Vec::new();
            for (a, b) in out {
                if a > from {
                    rest.push((from, a - 1));
                }
                from = b + 1;
            }
            if from <= LAST {
                rest.push((from, LAST));
            }
            out = rest;
        }
        Self { ranges: out }
    }

    fn one(c: char) -> Self {
        Self { ranges: vec![(u32::from(c), u32::from(c))] }
    }

    /// Whether they have a common character.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.ranges.iter().any(|(a, b)| other.ranges.iter().any(|(c, d)| a <= d && c <= b))
    }

    /// Writes it as a regex class, or as a plain character.
    pub fn write(&self, out: &mut String) {
        let plain = |x: u32| char::from_u32(x).filter(char::is_ascii_alphanumeric);
        let one = |x: u32, out: &mut String| match plain(x) {
            Some(c) => out.push(c),
            None => out.push_str(&format!("\\x{{{x:x}}}")),
        };
        if let [(a, b)] = self.ranges[..]
            && a == b
        {
            return one(a, out);
        }
        out.push('[');
        for (a, b) in &self.ranges {
            one(*a, out);
            if a < b {
                out.push('-');
                one(*b, out);
            }
        }
        out.push(']');
    }
}

/// A part of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Node {
    /// One character of a set.
    Chars(Set),
    /// A reference to a rule.
    Rule(usize),
    /// A sequence.
    Seq(Vec<Node>),
    /// Alternatives.
    Alt(Vec<Node>),
    /// Minimum and maximum number of repetitions.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A grammar.
#[derive(Debug)]
pub struct Grammar {
    /// The body of each rule.
    pub bodies: Vec<Node>,
    /// The start rule.
    pub root: usize,
    /// Rules that lead to a recursive rule.
    irregular: Vec<bool>,
}

impl Grammar {
    /// Whether the rule is regular.
    pub fn is_regular(&self, rule: usize) -> bool {
        !self.irregular[rule]
    }

    /// Whether a part is regular.
    pub fn is_plain(&self, node: &Node) -> bool {
        match node {
            Node::Chars(_) => true,
            Node::Rule(i) => self.is_regular(*i),
            Node::Seq(all) | Node::Alt(all) => all.iter().all(|n| self.is_plain(n)),
            Node::Repeat(inner, ..) => self.is_plain(inner),
        }
    }

    /// Writes a part as a regex with all rules expanded; false if it exceeds `bytes_max`.
    pub fn regex(&self, node: &Node, bytes_max: usize, out: &mut String) -> bool {
        match node {
            Node::Chars(set) => set.write(out),
            Node::Rule(i) => return self.regex(&self.bodies[*i], bytes_max, out),
            Node::Seq(all) => {
                out.push_str("(?:");
                if !all.iter().all(|n| self.regex(n, bytes_max, out)) {
                    return false;
                }
                out.push(')');
            }
            Node::Alt(all) => {
                out.push_str("(?:");
                for (i, one) in all.iter().enumerate() {
                    out.push_str(if i > 0 { "|" } else { "" });
                    if !self.regex(one, bytes_max, out) {
                        return false;
                    }
                }
                out.push(')');
            }
            Node::Repeat(inner, least, most) => {
                out.push_str("(?:");
                if !self.regex(inner, bytes_max, out) {
                    return false;
                }
                out.push(')');
                out.push_str(&counts(*least, *most));
            }
        }
        out.len() <= bytes_max
    }

    fn find_irregular(&mut self) {
        let n = self.bodies.len();
        let calls: Vec<Vec<usize>> = self.bodies.iter().map(called).collect();
        // 0 is new, 1 is in progress, 2 is done.
        let mut state = vec![0u8; n];
        let mut bad = vec![false; n];
        for start in 0..n {
            let mut stack = vec![(start, 0)];
            while let Some((rule, next)) = stack.pop() {
                state[rule] = state[rule].max(1);
                match calls[rule].get(next) {
                    Some(&to) => {
                        stack.push((rule, next + 1));
                        match state[to] {
                            0 => stack.push((to, 0)),
                            1 => bad[to] = true,
                            _ => {}
                        }
                    }
                    None => state[rule] = 2,
                }
            }
        }
        // Rules that lead to one.
        while let Some(rule) = (0..n).find(|&r| !bad[r] && calls[r].iter().any(|&to| bad[to])) {
            bad[rule] = true;
        }
        self.irregular = bad;
    }
}

fn called(node: &Node) -> Vec<usize> {
    let mut out = Vec::new();
    let mut rest = vec![node];
    while let Some(node) = rest.pop() {
        match node {
            Node::Chars(_) => {}
            Node::Rule(i) => out.push(*i),
            Node::Seq(all) | Node::Alt(all) => rest.extend(all),
            Node::Repeat(inner, ..) => rest.push(inner),
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: HashMap<&'a str, usize>,
    bodies: Vec<Option<Node>>,
    depth: usize,
}

/// Parses a grammar.
pub fn parse(text: &str) -> Result<Grammar, Error> {
    let mut p = Parser { text, at: 0, names: HashMap::new(), bodies: Vec::new(), depth: 0 };
    p.space(true);
    while p.at < text.len() {
        p.rule()?;
        p.space(true);
    }
    let Some(&root) = p.names.get("root") else {
        return Err(Error::Lark("the grammar has no rule 'root'".into()));
    };
    let mut names: Vec<&str> = vec![""; p.bodies.len()];
    p.names.iter().for_each(|(name, i)| names[*i] = name);
    let body = |(i, body): (usize, Option<Node>)| {
        body.ok_or_else(|| Error::Lark(format!("the rule '{}' is not defined", names[i])))
    };
    let bodies = p.bodies.into_iter().enumerate().map(body).collect::<Result<_, _>>()?;
    let mut grammar = Grammar { bodies, root, irregular: Vec::new() };
    grammar.find_irregular();
    Ok(grammar)
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Error::Lark(format!("in line {line}: {what}"))
    }

    fn expected(&self, what: &str) -> Error {
        match self.peek() {
            Some(c) => self.wrong(format_args!("expected {what}, got {c:?}")),
            None => self.wrong(format_args!("expected {what}, and the grammar ends here")),
        }
    }

    /// Skips white space and comments.
    fn space(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if newlines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        self.at += if found { what.len() } else { 0 };
        found
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let len = self.rest().find(|c| !is_word(c)).unwrap_or(self.rest().len());
        let name = &self.rest()[..len];
        self.at += len;
        (len > 0).then_some(name)
    }

    fn number_of(&mut self, name: &'a str) -> usize {
        let next = self.bodies.len();
        let i = *self.names.entry(name).or_insert(next);
        if i == next {
            self.bodies.push(None);
        }
        i
    }

    fn rule(&mut self) -> Result<(), Error> {
        let Some(name) = self.name() else { return Err(self.expected("a rule's name")) };
        self.space(false);
        if !self.take("::=") {
            return Err(self.expected("'::='"));
        }
        self.space(true);
        let i = self.number_of(name);
        let body = self.alternatives(false)?;
        if self.bodies[i].replace(body).is_some() {
            return Err(self.wrong(format_args!("the rule '{name}' is defined twice")));
        }
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            _ => Err(self.expected("the end of the rule")),
        }
    }

    fn alternatives(&mut self, nested: bool) -> Result<Node, Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format_args!("groups are nested deeper than {DEPTH_MAX}")));
        }
        let mut all = vec![self.sequence(nested)?];
        while self.take("|") {
            self.space(true);
            all.push(self.sequence(nested)?);
        }
        self.depth -= 1;
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Alt(all) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, Error> {
        let mut items = Vec::new();
        // The operand of a repetition: a quoted text counts as a whole.
        let mut last: Option<usize> = None;
        while let Some(c) = self.peek() {
            let from = items.len();
            match c {
                '"' => self.text_into(&mut items)?,
                '[' => items.push(Node::Chars(self.set()?)),
                '.' => {
                    self.at += 1;
                    items.push(Node::Chars(Set::new(vec![(0, LAST)], false)));
                }
                '(' => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.alternatives(true)?;
                    if !self.take(")") {
                        return Err(self.expected("')'"));
                    }
                    items.push(inner);
                }
                '<' | '!' => {
                    return Err(self.wrong("tokens (<...>) have no counterpart here; write their text"));
                }
                '*' | '+' | '?' | '{' => {
                    let Some(from) = last.take() else { return Err(self.expected("something to repeat")) };
                    let (least, most) = self.times()?;
                    let inner = if items.len() - from == 1 {
                        items.remove(from)
                    } else {
                        Node::Seq(items.split_off(from))
                    };
                    items.truncate(from);
                    items.push(Node::Repeat(Box::new(inner), least, most));
                    self.space(nested);
                    last = Some(from);
                    continue;
                }
                c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let Some(name) = self.name() else { break };
                    let i = self.number_of(name);
                    items.push(Node::Rule(i));
                }
                _ => break,
            }
            last = Some(from);
            self.space(nested);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Node::Seq(items) })
    }

    fn text_into(&mut self, items: &mut Vec<Node>) -> Result<(), Error> {
        self.at += 1;
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => items.push(Node::Chars(Set::one(self.char()?))),
                None => return Err(self.expected("the '\"' that ends a text")),
            }
        }
    }

    fn set(&mut self) -> Result<Set, Error> {
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => {
                    self.at += 1;
                    break;
                }
                Some(_) => {}
                None => return Err(self.expected("the ']' that ends a set of characters")),
            }
            let from = self.char()?;
            let mut to = from;
            let ends = self.rest().strip_prefix('-').is_some_and(|r| !r.starts_with(']') && !r.is_empty());
            if ends {
                self.at += 1;
                to = self.char()?;
            }
            if from > to {
                return Err(self.wrong(format_args!("the range {from}-{to} is empty")));
            }
            ranges.push((u32::from(from), u32::from(to)));
        }
        let set = Set::new(ranges, negated);
        if set.ranges.is_empty() {
            return Err(self.wrong("a set of no characters matches nothing"));
        }
        Ok(set)
    }

    fn char(&mut self) -> Result<char, Error> {
        let Some(c) = self.peek() else { return Err(self.expected("a character")) };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(c) = self.peek() else { return Err(self.expected("what is escaped")) };
        self.at += c.len_utf8();
        let digits = match c {
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'n' => return Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.wrong(format_args!("'\\{c}' is not a known escape"))),
        };
        let hex = self.rest().get(..digits).and_then(|h| u32::from_str_radix(h, 16).ok());
        let Some(found) = hex.and_then(char::from_u32) else {
            return Err(self.wrong(format_args!(
                "'\\{c}' must be followed by {digits} hexadecimal digits of a character"
            )));
        };
        self.at += digits;
        Ok(found)
    }

    fn times(&mut self) -> Result<(u32, Option<u32>), Error> {
        let sign = self.peek();
        self.at += 1;
        match sign {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        let Some(end) = self.rest().find('}') else { return Err(self.expected("the '}' that ends a count")) };
        let inside = &self.rest()[..end];
        let wrong = self.wrong(format_args!(
            "{{{inside}}} is no count: expected {{m}}, {{m,}}, {{,n}} or {{m,n}} up to {REPEAT_MAX}"
        ));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n <= REPEAT_MAX);
        let counts = match inside.split_once(',') {
            None => number(inside).map(|n| (n, Some(n))),
            Some((least, most)) => {
                let least = if least.trim().is_empty() { Some(0) } else { number(least) };
                let most = if most.trim().is_empty() { Some(None) } else { number(most).map(Some) };
                least.zip(most)
            }
        };
        match counts {
            Some((least, most)) if most.is_none_or(|m| least <= m) => {
                self.at += end + 1;
                Ok((least, most))
            }
            _ => Err(wrong),
        }
    }
}
