//! A model whose keys and values are the tokens themselves, and whose logits follow a script. Made by `main`.
//!
//! Its pages hold token ids, and its recurrent state is the length and a hash of what was fed. So the engine's caches are used as by any
//! hybrid model, and each step checks that they give back what was put in.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use octet_compute::backend::{CacheShape, KvType, LayerCache};
use octet_compute::batch::{PAGE_TOKENS, PageGroup, Span};
use octet_compute::cpu::profile::Profile;
use octet_compute::{Batch, ExpertCounts};
use octet_engine::Error;
use octet_engine::engine;
use octet_engine::models::config::Config;
use octet_engine::models::{Inspect, Limits, Model};
use octet_engine::tokenizer::{Special, Tokenizer};

use crate::script::{Answer, Script, Turn};

/// Bytes of a recurrent state.
pub const STATE_BYTES: usize = 16;
/// Bytes of a page: its token ids.
const PAGE_BYTES: usize = 4 * PAGE_TOKENS;
/// Logits of the token that the script wants, and of the one that ends an answer: taken where a grammar forbids the other.
const WANTED: f32 = 100.0;
const END: f32 = 50.0;
/// How the template begins an answer without thoughts.
const NO_THOUGHTS: &str = "<think>\n\n</think>\n\n";

/// What was fed to a slot: how many tokens, and a hash of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    len: u64,
    hash: u64,
}

impl State {
    fn feed(&mut self, token: u32) {
        self.len += 1;
        self.hash = (self.hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}

/// See the file's head.
pub struct Scripted {
    script: Script,
    log: PathBuf,
    prompts: usize,
    /// Answers by the hash of their prompts.
    answers: HashMap<u64, Answer>,
    tokenizer: Arc<Tokenizer>,
    turn_start: u32,
    turn_end: u32,
    config: Config,
    limits: Limits,
    shape: CacheShape,
    counts: Arc<ExpertCounts>,
    machine: Machine,
    /// `[pages, PAGE_TOKENS]`
    pages: Vec<u32>,
    /// `[slots]`
    states: Vec<State>,
    /// `[outputs, vocab]` of the last step.
    logits: Vec<f32>,
}

impl Scripted {
    /// For a file whose tokenizer has ChatML's tokens.
    pub fn new(
        file: &octet_weights::Model,
        options: &engine::Options,
        script: Script,
        log: PathBuf,
    ) -> Result<Self, Error> {
        let config = Config::read(file)?;
        // its states cannot leave guesses out
        let limits = Limits { guesses: 0, ..options.limits(config.context_length, STATE_BYTES as u64)? };
        let tokenizer = Arc::new(Tokenizer::from_metadata(&file.metadata)?);
        let token = |text: &str| {
            tokenizer.special_id(text).ok_or_else(|| Error::Request(format!("the tokenizer has no {text}")))
        };
        let shape = CacheShape {
            layers: vec![
                LayerCache::Kv { kv_heads: 1, k_dim: 1, v_dim: 1, group: PageGroup::All },
                LayerCache::State { conv: STATE_BYTES / 4, state: 0, inputs: 0 },
            ],
            pages: limits.pages,
            windowed: None,
            slots: limits.slots,
            guesses: 0,
            kv: KvType::F16.into(),
        };
        assert_eq!((shape.page_bytes(PageGroup::All), shape.slot_bytes()), (PAGE_BYTES, STATE_BYTES));
        Ok(Self {
            turn_start: token("<|im_start|>")?,
            turn_end: token("<|im_end|>")?,
            tokenizer,
            script,
            log,
            prompts: 0,
            answers: HashMap::new(),
            counts: Arc::new(ExpertCounts::new(config.layers, config.moe.map_or(0, |m| m.experts))),
            machine: Machine,
            pages: vec![0; limits.pages * PAGE_TOKENS],
            states: vec![State::default(); limits.slots],
            logits: Vec::new(),
            shape,
            limits,
            config,
        })
    }

    /// Puts a span's tokens into its pages and its state.
    fn feed(&mut self, batch: &Batch, span: &Span) {
        let state = &mut self.states[span.slot];
        assert_eq!(state.len, span.past as u64, "the state of another position was restored");
        for i in 0..span.len {
            let (page, row) = batch.page_of(span, PageGroup::All, span.past + i);
            self.pages[page * PAGE_TOKENS + row] = batch.tokens()[span.start + i];
            state.feed(batch.tokens()[span.start + i]);
        }
    }

    /// The tokens of a sequence, from its pages.
    fn sequence(&self, batch: &Batch, span: &Span) -> Vec<u32> {
        let token = |at| {
            let (page, row) = batch.page_of(span, PageGroup::All, at);
            self.pages[page * PAGE_TOKENS + row]
        };
        (0..span.past + span.len).map(token).collect()
    }

    /// The token that the script wants next.
    fn next(&mut self, tokens: &[u32]) -> u32 {
        let Some(start) = tokens.iter().rposition(|&t| t == self.turn_start) else { return self.turn_end };
        let (prompt, written) = tokens.split_at(start);
        let mut state = State::default();
        prompt.iter().for_each(|&t| state.feed(t));
        let answer = match self.answers.get(&state.hash) {
            Some(answer) => answer.clone(),
            None => {
                let answer = self.choose(prompt, tokens);
                self.answers.insert(state.hash, answer.clone());
                answer
            }
        };
        let written = self.decode(&written[1..]);
        let written = written.strip_prefix(b"assistant\n").unwrap_or(&written);
        let (written, whole) = match written.strip_prefix(NO_THOUGHTS.as_bytes()) {
            Some(written) => (written, answer.text),
            None => (written, format!("<think>\n{}\n</think>\n\n{}", answer.think, answer.text)),
        };
        self.continuation(&whole, written).unwrap_or(self.turn_end)
    }

    /// The first token of what is left of `whole` after `written`. Nothing where that is all, or something else was written.
    fn continuation(&self, whole: &str, written: &[u8]) -> Option<u32> {
        let rest = whole.as_bytes().strip_prefix(written)?;
        let mut at = 0;
        for token in self.encode(whole) {
            if at == written.len() {
                return Some(token);
            }
            at += self.decode(&[token]).len();
        }
        // The template wrote half a token of it.
        self.encode(std::str::from_utf8(rest).ok()?).first().copied()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::Parse).expect("a script is text")
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for &id in tokens {
            match self.tokenizer.token_bytes(id) {
                // control tokens
                [] => out.extend_from_slice(self.tokenizer.token_text(id).unwrap_or_default().as_bytes()),
                bytes => out.extend_from_slice(bytes),
            }
        }
        out
    }

    /// The answer to a prompt, which goes into the log.
    fn choose(&mut self, prompt: &[u32], all: &[u32]) -> Answer {
        let turns: Vec<Turn> =
            prompt.split(|&t| t == self.turn_start).skip(1).map(|t| self.turn(t)).collect();
        let chosen = self.script.choose(&turns);
        self.prompts += 1;
        let entry = serde_json::json!({
            "prompt": self.prompts, "tokens": prompt.len(), "task": chosen.task, "step": chosen.step, "failure": chosen.failure,
        });
        let text = self.decode(all);
        write_log(&self.log, self.prompts, &text, &entry.to_string()).expect("the log can be written");
        chosen.answer
    }

    fn turn(&self, tokens: &[u32]) -> Turn {
        let tokens = tokens.split(|&t| t == self.turn_end).next().unwrap_or_default();
        let text = String::from_utf8_lossy(&self.decode(tokens)).into_owned();
        let (role, text) = text.split_once('\n').unwrap_or((&text, ""));
        let is_result = role == "user" && text.starts_with("<tool_response>");
        Turn { role: if is_result { "tool" } else { role }.into(), text: text.into() }
    }
}

fn write_log(dir: &Path, number: usize, prompt: &[u8], entry: &str) -> std::io::Result<()> {
    std::fs::write(dir.join(format!("{number:03}.txt")), prompt)?;
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log.jsonl"))?;
    writeln!(log, "{entry}")
}

impl Model for Scripted {
    fn config(&self) -> &Config {
        &self.config
    }
    fn cache_shape(&self) -> &CacheShape {
        &self.shape
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn expert_counts(&self) -> &Arc<ExpertCounts> {
        &self.counts
    }
    fn backend(&mut self) -> &mut dyn Inspect {
        &mut self.machine
    }
    fn takes_images(&self) -> [bool; 2] {
        [true; 2] // and looks at none
    }

    fn step(&mut self, batch: &Batch) -> Result<&[f32], Error> {
        let vocab = self.config.vocab;
        self.logits.clear();
        self.logits.resize(batch.outputs().len() * vocab, 0.0);
        let mut row = 0;
        for span in batch.spans() {
            self.feed(batch, span);
            let end = span.start + span.len;
            let wanted = batch.outputs().iter().filter(|&&o| (span.start..end).contains(&(o as usize)));
            let sequence = self.sequence(batch, span);
            for &output in wanted {
                let token = self.next(&sequence[..span.past + output as usize + 1 - span.start]);
                let row_logits = &mut self.logits[row * vocab..][..vocab];
                row_logits[self.turn_end as usize] = END;
                row_logits[token as usize] = WANTED;
                row += 1;
            }
        }
        Ok(&self.logits)
    }

    fn last_logits(&self) -> &[f32] {
        &self.logits
    }
    fn hidden(&mut self) -> Result<&[f32], Error> {
        Err(Error::Request("a script has no hidden states".into()))
    }
    fn step_traced(&mut self, _: &Batch, _: &mut dyn FnMut(usize, &[f32])) -> Result<&[f32], Error> {
        Err(Error::Request("a script has no layers".into()))
    }
    fn step_mtp(&mut self, _: &Batch, _: &[f32]) -> Result<Option<&[f32]>, Error> {
        Ok(None)
    }

    fn reset_slot(&mut self, slot: usize) {
        self.states[slot] = State::default();
    }
    fn copy_slot(&mut self, from: usize, to: usize) {
        self.states[to] = self.states[from];
    }
    fn copy_page(&mut self, _: PageGroup, from: usize, to: usize) {
        self.pages.copy_within(from * PAGE_TOKENS..(from + 1) * PAGE_TOKENS, to * PAGE_TOKENS);
    }
    fn save_slot(&mut self, slot: usize, out: &mut [u8]) {
        let State { len, hash } = self.states[slot];
        out[..8].copy_from_slice(&len.to_le_bytes());
        out[8..].copy_from_slice(&hash.to_le_bytes());
    }
    fn load_slot(&mut self, slot: usize, data: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        self.states[slot] = State { len: word(0), hash: word(8) };
    }
    fn save_page(&mut self, _: PageGroup, page: usize, out: &mut [u8]) {
        let tokens = &self.pages[page * PAGE_TOKENS..][..PAGE_TOKENS];
        for (bytes, token) in out.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
    }
    fn load_page(&mut self, _: PageGroup, page: usize, data: &[u8]) {
        let tokens = &mut self.pages[page * PAGE_TOKENS..][..PAGE_TOKENS];
        for (token, bytes) in tokens.iter_mut().zip(data.chunks_exact(4)) {
            *token = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        }
    }
}

/// What runs it.
struct Machine;

impl Inspect for Machine {
    fn describe(&self) -> String {
        "a script".into()
    }
    fn numerics(&self) -> String {
        self.describe()
    }
    fn threads(&self) -> usize {
        1
    }
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }
    fn measure_bandwidth(&mut self, _: usize) -> Result<Vec<f64>, octet_compute::Error> {
        Err(octet_compute::Error("a script reads no weights".into()))
    }
}
