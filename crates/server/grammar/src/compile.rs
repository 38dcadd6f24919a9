//! Compiles constraints to grammars. Called by the server for each request with a constraint, on a blocking thread: common schemas
//! take milliseconds, the worst take seconds.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::gbnf::{self, Translated};
use crate::limits::{CHOICE_BYTES_MAX, CHOICES_MAX, COMPILE_STACK_BYTES, COMPILING_MAX};
use crate::matcher::{Free, Matcher, NOTHING};
use crate::schema::{self, Policy};
use crate::tools::{Calls, header};
use crate::{Constraint, Error, GrammarSpec, Header, ToolMode, ToolSyntax, Vocabulary, lark, regex};

/// A compiled constraint: creates a [`Matcher`] for each answer. Reusable for many requests.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// A matcher in its initial state.
    fresh: llguidance::Matcher,
    /// The free text before the grammar.
    free: Option<Free>,
    /// It contains no special token.
    plain: bool,
    warnings: Vec<String>,
}

/// The grammar's text, and what is not enforced.
struct Source {
    grammar: TopLevelGrammar,
    plain: bool,
    warnings: Vec<String>,
}

impl Grammar {
    /// Compiles a constraint for a vocabulary. Runs on its own thread with a large stack for deep grammars, with a time limit.
    /// gives up after some seconds.
    pub fn compile(vocabulary: &Arc<Vocabulary>, constraint: &Constraint) -> Result<Self, Error> {
        let running = vocabulary.compiling.fetch_add(1, Ordering::AcqRel);
        let guard = Running(vocabulary.clone());
        if running >= COMPILING_MAX {
            return Err(Error::Busy(running));
        }
        let constraint = constraint.clone();
        let (send, receive) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("octet-grammar".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(move || {
                let out = compile(&guard.0, &constraint);
                drop(constraint);
                drop(guard);
                // The caller may have given up.
                let _ = send.send(out);
            })
            .map_err(|e| Error::TooComplex(format!("no thread to compile it could be started: {e}")))?;
        let most = vocabulary.times.compile;
        match receive.recv_timeout(most) {
            Ok(out) => out,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Error::TooComplex(format!("it was not compiled after {most:?}")))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::TooComplex(
                "its compilation failed in a way that it should not; please report it".into(),
            )),
        }
    }

    /// A matcher for a new answer.
    pub fn matcher(&self) -> Matcher {
        // A deep copy: caches shared by many answers would reach their limits.
        Matcher::new(self.vocabulary.clone(), self.fresh.deep_clone(), self.free, self.plain)
    }

    /// Parts of the constraint that are not enforced.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("free", &self.free).field("warnings", &self.warnings).finish()
    }
}

/// Counts a running compilation until dropped.
struct Running(Arc<Vocabulary>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.compiling.fetch_sub(1, Ordering::AcqRel);
    }
}

fn compile(vocabulary: &Arc<Vocabulary>, constraint: &Constraint) -> Result<Grammar, Error> {
    let free = free(vocabulary, constraint)?;
    let unfree = constraint.reasoning_end.as_deref().filter(|_| free.is_none());
    let preamble = Preamble {
        reasoning: unfree,
        newlines: constraint.reasoning_end.is_some() && constraint.header.is_none(),
        header: constraint.header.as_ref(),
    };
    let mut first = Err(Error::TooComplex(String::new()));
    let mut relaxed = HashSet::new();
    // Tries again without tools that are not strict, if they were too complex.
    for _ in 0..2 {
        let source = source(vocabulary, &constraint.spec, &preamble, &relaxed)?;
        let plain = source.plain;
        first = build(vocabulary, &constraint.spec, source, &preamble).map(|(fresh, warnings)| Grammar {
            vocabulary: vocabulary.clone(),
            fresh,
            free,
            plain,
            warnings,
        });
        if first.is_ok() {
            break;
        }
        relaxed = too_complex(vocabulary, &constraint.spec, &preamble)?;
        if relaxed.is_empty() {
            break;
        }
    }
    first
}

/// The part of an answer before the grammar.
struct Preamble<'a> {
    /// Reasoning up to this text, in a vocabulary without a token for it.
    reasoning: Option<&'a str>,
    /// Up to two newlines after reasoning.
    newlines: bool,
    /// The header before text.
    header: Option<&'a Header>,
}

impl Preamble<'_> {
    /// All of it that the prompt has not written; the constraint follows.
    fn tokens(&self, vocabulary: &Vocabulary, spec: &GrammarSpec) -> Vec<u32> {
        let header = self.header.filter(|_| !matches!(spec, GrammarSpec::ToolCalls { .. }));
        let header = header.and_then(|h| h.text.open.get(h.begun..)).unwrap_or_default();
        let newlines = if self.newlines { "\n\n" } else { "" };
        vocabulary.tokens(&format!("{}{newlines}{header}", self.reasoning.unwrap_or_default()))
    }

    /// The rule `start`, for an answer that matches `body`, which is text unless it `calls`.
    fn start(&self, vocabulary: &Vocabulary, body: &str, calls: bool) -> String {
        if let Some(header) = self.header {
            return header::start(vocabulary, header, self.reasoning, body, calls);
        }
        let newlines = if self.newlines { "/\\n{1,2}/? " } else { "" };
        match self.reasoning {
            None => format!("start: {newlines}{body}\n"),
            Some(end) => {
                format!(
                    "start: reasoning {newlines}{body}\nreasoning[suffix={}]: /(?s:.*)/\n",
                    lark::literal(end).trim_end()
                )
            }
        }
    }
}

/// The free part of an answer, if a token ends it.
fn free(vocabulary: &Vocabulary, constraint: &Constraint) -> Result<Option<Free>, Error> {
    if constraint.header.is_some() {
        return Ok(None); // The grammar is for whole answers.
    }
    let end = constraint.reasoning_end.as_deref().map(|end| {
        if end.is_empty() {
            Err(Error::Lark("the text that ends the reasoning is empty".into()))
        } else {
            Ok(vocabulary.special(end))
        }
    });
    let end = end.transpose()?.flatten();
    let GrammarSpec::ToolCalls { mode, syntax, .. } = &constraint.spec else {
        return Ok(end.map(|end| Free { end: Some(end), call: None, may_end: false }));
    };
    let begin = syntax.begin();
    let call = vocabulary.special(begin);
    if matches!(syntax, ToolSyntax::Harmony { .. })
        || syntax.is_recognised_by_position(vocabulary) && *mode == ToolMode::Auto
    {
        return Ok(None); // The grammar is for whole answers.
    }
    if *mode == ToolMode::Auto {
        let Some(call) = call else {
            return Err(Error::Tools(format!(
                "the model has no token {begin}, so calls within text cannot be recognised"
            )));
        };
        return Ok(Some(Free { end: None, call: Some(call), may_end: true }));
    }
    // A call within the reasoning ends it.
    Ok(end.map(|end| Free { end: Some(end), call, may_end: false }))
}

fn source(
    vocabulary: &Vocabulary,
    spec: &GrammarSpec,
    preamble: &Preamble<'_>,
    relaxed: &HashSet<usize>,
) -> Result<Source, Error> {
    let with = |body: String, warnings| {
        let calls = matches!(spec, GrammarSpec::ToolCalls { .. });
        let start = preamble.start(vocabulary, "body", calls);
        let grammar = TopLevelGrammar::from_lark(format!("{start}{body}"));
        Ok(Source { grammar, plain: false, warnings })
    };
    let json =
        |prepared: schema::Prepared| with(format!("body: {}\n", lark::json(&prepared)), prepared.warnings);
    match spec {
        GrammarSpec::JsonObject => {
            let any = serde_json::json!({ "type": "object" });
            json(schema::prepare(&any, SUBJECT, Policy::Refuse, false)?)
        }
        GrammarSpec::JsonSchema(schema) => json(schema::prepare(schema, SUBJECT, Policy::Refuse, false)?),
        GrammarSpec::Regex(pattern) => {
            let regex = regex::whole(pattern).map_err(Error::Regex)?;
            let body = if regex.is_empty() { lark::literal("") } else { format!("/{regex}/") };
            with(format!("body: {body}\n"), Vec::new())
        }
        GrammarSpec::Lark(text) => {
            let lark::Checked { text, plain, warnings } = lark::check(text)?;
            let user = GrammarWithLexer { name: Some("user".into()), ..GrammarWithLexer::from_lark(text) };
            let mut grammar = TopLevelGrammar::from_grammar(user);
            if preamble.newlines || preamble.header.is_some() {
                let start = preamble.start(vocabulary, "@user", false);
                grammar.grammars.insert(0, GrammarWithLexer::from_lark(start));
            }
            Ok(Source { grammar, plain, warnings })
        }
        GrammarSpec::Gbnf(text) => {
            let translated = match gbnf::translate(text)? {
                Translated::Regex(pattern) => GrammarSpec::Regex(pattern),
                Translated::Lark(text) => GrammarSpec::Lark(text),
            };
            source(vocabulary, &translated, preamble, relaxed)
        }
        GrammarSpec::Choice(choices) => with(choice(choices)?, Vec::new()),
        GrammarSpec::ToolCalls { syntax, tools, mode, parallel } => {
            let header = preamble.header;
            let calls = Calls { syntax, tools, mode, parallel: *parallel, header };
            let rules = calls.write(vocabulary, relaxed)?;
            with(rules.text, rules.warnings)
        }
    }
}

/// What errors call the schema.
const SUBJECT: &str = "the JSON schema";

fn choice(choices: &[String]) -> Result<String, Error> {
    let bytes: usize = choices.iter().map(String::len).sum();
    if choices.is_empty() || choices.len() > CHOICES_MAX {
        return Err(Error::Choice(format!("there are {}; expected 1 to {CHOICES_MAX}", choices.len())));
    }
    if bytes > CHOICE_BYTES_MAX {
        return Err(Error::Choice(format!(
            "they have {bytes} bytes in all; the maximum is {CHOICE_BYTES_MAX}"
        )));
    }
    let texts: Vec<String> = choices.iter().filter(|c| !c.is_empty()).map(|c| lark::literal(c)).collect();
    let nothing = texts.len() < choices.len();
    // One terminal, so that the choices become one automaton.
    Ok(match (texts.is_empty(), nothing) {
        (true, _) => format!("body: {}\n", lark::literal("")),
        (false, false) => format!("body: CHOICE\nCHOICE: {}\n", texts.join("| ")),
        (false, true) => format!("body: CHOICE?\nCHOICE: {}\n", texts.join("| ")),
    })
}

/// Tools that cannot be compiled on their own; empty if one of them is strict.
fn too_complex(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    preamble: &Preamble<'_>,
) -> Result<HashSet<usize>, Error> {
    let mut out = HashSet::new();
    let GrammarSpec::ToolCalls { syntax, tools, .. } = spec else { return Ok(out) };
    for (i, tool) in tools.iter().enumerate().filter(|(_, t)| !t.strict) {
        let one = GrammarSpec::ToolCalls {
            syntax: syntax.clone(),
            tools: vec![tool.clone()],
            mode: ToolMode::Required,
            parallel: false,
        };
        let source = source(vocabulary, &one, preamble, &HashSet::new())?;
        if build(vocabulary, &one, source, preamble).is_err() {
            out.insert(i);
        }
    }
    Ok(out)
}

/// Number of tokens for which a new constraint is tried if there are alternatives, and in total if there are none.
const TRIED: usize = 2;
/// See [`TRIED`].
const TRIED_FORCED: usize = 64;

/// Computes the first masks, so that a constraint that cannot match, or is too complex, is refused before anything is generated. Some
/// show that only after a few tokens, so the first allowed tokens are tried, and all forced ones.
///
/// The preamble can always match, so it is placed first; then the constraint itself is checked.
fn check_first(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    fresh: &llguidance::Matcher,
    plain: bool,
    preamble: &[u32],
) -> Result<(), Error> {
    let mut first = Matcher::new(vocabulary.clone(), fresh.deep_clone(), None, plain);
    let mut bits = vec![0; vocabulary.everything.len()];
    let mut text = Vec::new();
    let (mut chosen, mut forced) = (0, 0);
    let trie = vocabulary.factory.tok_env().tok_trie();
    let said = |e, text: &[u8]| match e {
        Error::Step(said) if text.is_empty() => error(spec, &said),
        Error::Step(said) => error(spec, &format!("behind {:?} {said}", String::from_utf8_lossy(text))),
        other => other,
    };
    for &id in preamble {
        first.accept(id).map_err(|e| said(e, &[]))?;
    }
    loop {
        first.mask(&mut bits).map_err(|e| said(e, &text))?;
        let allowed = |id: &u32| bits[*id as usize / 32] >> (id % 32) & 1 == 1;
        let mut all = (0..vocabulary.len() as u32).filter(allowed);
        let any = all.clone().take(2).count();
        if text.is_empty() && any == 0 {
            return Err(error(spec, NOTHING));
        }
        // A mask with one bit means that the token is forced.
        if any == 1 {
            forced += 1;
        } else {
            chosen += 1;
        }
        let Some(next) = all.find(|id| !vocabulary.eos().contains(id)) else { return Ok(()) };
        if chosen > TRIED || forced > TRIED_FORCED {
            return Ok(());
        }
        text.extend_from_slice(trie.token(next));
        first.accept(next).map_err(|e| said(e, &text))?;
    }
}

fn build(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    source: Source,
    preamble: &Preamble<'_>,
) -> Result<(llguidance::Matcher, Vec<String>), Error> {
    let parser = vocabulary.factory.create_parser(source.grammar).map_err(|e| error(spec, &e.to_string()))?;
    let mut matcher = llguidance::Matcher::new(Ok(parser)).into_cancellable();
    if let Some(e) = matcher.get_error() {
        return Err(error(spec, &e));
    }
    if let Some(header) = preamble.header {
        let begun = vocabulary.tokens(header.text.open.get(..header.begun).unwrap_or_default());
        let taken = matcher.try_consume_tokens(&begun).map_err(|e| error(spec, &e.to_string()))?;
        if taken < begun.len() {
            let what = "the prompt ends with a beginning of the header that no answer can continue";
            return Err(error(spec, what));
        }
    }
    check_first(vocabulary, spec, &matcher, source.plain, &preamble.tokens(vocabulary, spec))?;
    let mut warnings = source.warnings;
    warnings.extend(matcher.grammar_warnings());
    Ok((matcher, warnings))
}

/// Maximum length of llguidance's message.
const MESSAGE_CHARS_MAX: usize = 600;

/// llguidance's message, for the request's sender.
fn error(spec: &GrammarSpec, said: &str) -> Error {
    let said = said.trim_end_matches("<non-verbose/>").trim();
    let said = match spec {
        // Positions refer to the sender's own text.
        GrammarSpec::Lark(_) => said,
        _ => {
            let line = said.lines().next().unwrap_or_default();
            // Removes "at LINE(COLUMN): ", a position in a text that the sender does not know.
            let line = match line.strip_prefix("at ").and_then(|l| l.split_once("): ")) {
                Some((place, rest)) if place.bytes().all(|b| b.is_ascii_digit() || b == b'(') => rest,
                _ => line,
            };
            line.trim_start_matches("failed to compile JSON schema: ")
        }
    };
    let said: String = said.chars().take(MESSAGE_CHARS_MAX).collect();
    if let Some(panic) = said.strip_prefix("panic: ") {
        return Error::TooComplex(format!("it cannot be compiled: {panic}"));
    }
    match spec {
        GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_) => {
            Error::Schema { subject: SUBJECT.into(), path: "#".into(), what: said }
        }
        GrammarSpec::Regex(_) => Error::Regex(said),
        GrammarSpec::Lark(_) | GrammarSpec::Gbnf(_) => Error::Lark(said),
        GrammarSpec::Choice(_) => Error::Choice(said),
        GrammarSpec::ToolCalls { .. } => Error::Tools(said),
    }
}
