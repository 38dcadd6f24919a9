//! Finds parts of a grammar that can be lexemes of more than one character.
//!
//! Such a part is regular, not empty, and *closed*: its automaton is deterministic (Glushkov's construction; Brüggemann-Klein and Wood
//! 1998), and none of its texts is a proper prefix of another. And no other lexeme begins with one of its first characters. Then the
//! longest lexeme is the only one, at every position.

use std::collections::HashMap;

use super::parse::{Grammar, Node, Set};

/// Maximum size of a part in characters.
const POSITIONS_MAX: usize = 512;
/// Maximum number of elements of a sequence that form one part.
const ITEMS_MAX: usize = 64;
/// Maximum number of parts: all pairs are compared.
const PARTS_MAX: usize = 512;
/// Maximum number of steps for building a grammar's automata. A rule of a few bytes may expand to more than can be built, even without
/// any characters: the rest then consists of lexemes of one character.
const STEPS_MAX: usize = 1 << 24;
/// The same for one automaton.
const STEPS_OF_ONE_MAX: usize = 1 << 18;

/// The parts that are lexemes.
pub struct Lexemes {
    /// Parts by their elements; true for lexemes.
    parts: HashMap<Vec<Node>, bool>,
}

impl Lexemes {
    /// The lexemes of a grammar.
    pub fn choose(grammar: &Grammar) -> Self {
        let mut out = Self { parts: HashMap::new() };
        let mut firsts = HashMap::new();
        let mut steps_left = STEPS_MAX;
        for body in &grammar.bodies {
            each_sequence(body, &mut |items| {
                let mut at = 0;
                while at < items.len() && out.parts.len() < PARTS_MAX {
                    let len = closed(grammar, &items[at..], &mut firsts, &mut steps_left);
                    if len > 1 {
                        out.parts.insert(items[at..at + len].to_vec(), true);
                    }
                    at += len.max(1);
                }
            });
        }
        // Parts with common first characters are split, which creates more lexemes of one character.
        loop {
            let singles = out.singles(grammar);
            let clash = out.parts.iter().find(|(part, is)| {
                let Some(first) = firsts.get(*part).filter(|_| **is) else { return false };
                let other = |p: &Vec<Node>| {
                    out.parts[p] && p != *part && firsts.get(p).is_some_and(|f: &Set| f.overlaps(first))
                };
                singles.iter().any(|s| s.overlaps(first)) || out.parts.keys().any(other)
            });
            let Some(part) = clash.map(|(part, _)| part.clone()) else { return out };
            out.parts.insert(part, false);
        }
    }

    /// Number of elements at the beginning of a sequence that form one lexeme; 0 if there is none.
    pub fn at(&self, items: &[Node]) -> usize {
        (2..=items.len().min(ITEMS_MAX))
            .rev()
            .find(|n| self.parts.get(&items[..*n]) == Some(&true))
            .unwrap_or(0)
    }

    /// All lexemes of one character.
    fn singles(&self, grammar: &Grammar) -> Vec<Set> {
        fn add(lexemes: &Lexemes, node: &Node, out: &mut Vec<Set>) {
            match node {
                Node::Chars(set) => {
                    if !out.contains(set) {
                        out.push(set.clone());
                    }
                }
                Node::Rule(_) => {}
                Node::Seq(items) => {
                    let mut at = 0;
                    while at < items.len() {
                        let len = lexemes.at(&items[at..]);
                        if len == 0 {
                            add(lexemes, &items[at], out);
                        }
                        at += len.max(1);
                    }
                }
                Node::Alt(all) => all.iter().for_each(|n| add(lexemes, n, out)),
                Node::Repeat(inner, ..) => add(lexemes, inner, out),
            }
        }
        let mut out = Vec::new();
        grammar.bodies.iter().for_each(|body| add(self, body, &mut out));
        out
    }
}

fn each_sequence(node: &Node, with: &mut impl FnMut(&[Node])) {
    match node {
        Node::Chars(_) | Node::Rule(_) => {}
        Node::Seq(items) => {
            with(items);
            items.iter().for_each(|n| each_sequence(n, with));
        }
        Node::Alt(all) => all.iter().for_each(|n| each_sequence(n, with)),
        Node::Repeat(inner, ..) => each_sequence(inner, with),
    }
}

/// The maximum number of leading elements that are closed together; adds their first characters to `firsts`.
fn closed(
    grammar: &Grammar,
    items: &[Node],
    firsts: &mut HashMap<Vec<Node>, Set>,
    steps_left: &mut usize,
) -> usize {
    let plain = items.iter().take(ITEMS_MAX).take_while(|n| grammar.is_plain(n)).count();
    for len in (2..=plain).rev() {
        let most = STEPS_OF_ONE_MAX.min(*steps_left);
        let mut automaton = Automaton { steps_left: most, ..Automaton::default() };
        let part = automaton.add(grammar, &Node::Seq(items[..len].to_vec()));
        *steps_left -= most - automaton.steps_left;
        let Some(part) = part else { continue };
        if !part.nullable
            && automaton.is_deterministic(&part.first)
            && part.last.iter().all(|p| automaton.follow[*p].is_empty())
        {
            let ranges = part.first.iter().flat_map(|p| automaton.sets[*p].ranges.clone()).collect();
            firsts.insert(items[..len].to_vec(), Set { ranges });
            return len;
        }
    }
    0
}

/// Glushkov's automaton: one state per character of the expression.
#[derive(Default)]
struct Automaton {
    sets: Vec<Set>,
    follow: Vec<Vec<usize>>,
    steps_left: usize,
}

/// A part of the automaton.
struct Piece {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Automaton {
    /// `None` if it gets too large.
    fn add(&mut self, grammar: &Grammar, node: &Node) -> Option<Piece> {
        self.step(1)?;
        match node {
            Node::Chars(set) => {
                let at = self.sets.len();
                self.sets.push(set.clone());
                self.follow.push(Vec::new());
                (at < POSITIONS_MAX).then(|| Piece { nullable: false, first: vec![at], last: vec![at] })
            }
            Node::Rule(i) => self.add(grammar, &grammar.bodies[*i]),
            Node::Seq(items) => {
                let mut out = Piece { nullable: true, first: Vec::new(), last: Vec::new() };
                for item in items {
                    let next = self.add(grammar, item)?;
                    out = self.then(out, next)?;
                }
                Some(out)
            }
            Node::Alt(all) => {
                let mut out = Piece { nullable: false, first: Vec::new(), last: Vec::new() };
                for one in all {
                    let one = self.add(grammar, one)?;
                    self.step(one.first.len() + one.last.len())?;
                    out.nullable |= one.nullable;
                    out.first.extend(one.first);
                    out.last.extend(one.last);
                }
                Some(out)
            }
            Node::Repeat(inner, least, most) => {
                let mut out = Piece { nullable: true, first: Vec::new(), last: Vec::new() };
                for _ in 0..*least {
                    let next = self.add(grammar, inner)?;
                    out = self.then(out, next)?;
                }
                match most {
                    None => {
                        let again = self.add(grammar, inner)?;
                        self.lead(&again.last, &again.first)?;
                        self.then(out, Piece { nullable: true, ..again })
                    }
                    Some(most) => {
                        // a{0,2} is (a(a)?)?: the last states may be followed by the repetition.
                        let mut tail = Piece { nullable: true, first: Vec::new(), last: Vec::new() };
                        for _ in *least..*most {
                            let next = self.add(grammar, inner)?;
                            tail = Piece { nullable: true, ..self.then(next, tail)? };
                        }
                        self.then(out, tail)
                    }
                }
            }
        }
    }

    fn step(&mut self, n: usize) -> Option<()> {
        self.steps_left = self.steps_left.checked_sub(n)?;
        Some(())
    }

    /// Adds transitions from `from` to `to`.
    fn lead(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        self.step(from.len() * to.len())?;
        for p in from {
            self.follow[*p].extend(to);
        }
        Some(())
    }

    fn then(&mut self, a: Piece, b: Piece) -> Option<Piece> {
        self.step(a.last.len() + b.first.len())?;
        self.lead(&a.last, &b.first)?;
        let mut first = a.first;
        if a.nullable {
            first.extend(&b.first);
        }
        let mut last = b.last;
        if b.nullable {
            last.extend(a.last);
        }
        Some(Piece { nullable: a.nullable && b.nullable, first, last })
    }

    /// Also false if there are too many to compare.
    fn is_deterministic(&self, first: &[usize]) -> bool {
        let pairs = |ids: &[usize]| ids.len().saturating_mul(ids.len());
        let all = self.follow.iter().map(|f| pairs(f)).fold(pairs(first), usize::saturating_add);
        if all > STEPS_OF_ONE_MAX {
            return false;
        }
        let apart = |ids: &[usize]| {
            ids.iter()
                .enumerate()
                .all(|(i, a)| ids[i + 1..].iter().all(|b| a == b || !self.sets[*a].overlaps(&self.sets[*b])))
        };
        apart(first) && self.follow.iter().all(|f| apart(f))
    }
}
