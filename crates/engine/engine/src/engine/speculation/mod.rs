//! Speculative decoding. Drafters guess the next tokens; the step computes them after the certain token; and at each position the model's
//! own token is sampled as usual (`finish`). So text, probabilities and random numbers are the same as without guesses, and a wrong guess
//! only costs time, which `controller` bounds.
//!
//! The drafters (`Drafter`): `forced` (tokens that a grammar forces), `lookup` (repeated text), `mtp` (the model's own block), `draft` (a
//! small model). After each step they run in this order, for the answers that have no guesses yet.

pub mod controller;
mod draft;
mod forced;
mod lookup;
mod measure;
mod mtp;
mod oracle;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Running;
use super::choice::Choice;
use crate::Error;
use crate::cache::Cache;
use crate::models::{DraftVocab, Model};
use controller::{Class, Controller, History, Shared};
use lookup::Lookup;

/// The drafters to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Multi-token prediction if the model has a block for it and it pays on this machine, and lookup.
    #[default]
    Auto,
    /// No guesses.
    Off,
    /// The block for multi-token prediction; an error if the model has none.
    Mtp,
    /// Lookup in the text.
    Lookup,
    /// A small model ([`Options::draft`]).
    Draft,
}

/// Maximum number of guesses of one answer in a step.
pub const DRAFT_MAX: usize = 16;
/// Default number of guesses.
pub const DRAFT_DEFAULT: usize = 8;
/// Maximum number of guesses of all answers in a step; each needs a row of logits.
const STEP_GUESSES_MAX: usize = 32;
/// Prompt tokens that a draft model processes at a time.
pub(crate) const DRAFT_READ_TOKENS: usize = 256;
/// Positions in a step for which acceptance is counted separately.
pub const POSITIONS: usize = DRAFT_MAX;

/// Speculative decoding.
#[derive(Clone)]
pub struct Options {
    /// The drafters to use.
    pub mode: Mode,
    /// Maximum number of guesses of one answer in a step, up to [`DRAFT_MAX`]; 0 turns guesses off.
    pub draft_max: usize,
    /// A model for [`Mode::Draft`], with the same tokenizer.
    pub draft: Option<Arc<octet_weights::Model>>,
    /// The vocabulary of the block for multi-token prediction.
    pub vocab: DraftVocab,
    /// For tests: computes all guesses, whether they pay or not.
    pub always: bool,
    /// For measurements: replaces all guesses by some that are right with this probability, 0 to 1.
    pub oracle: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        let vocab = DraftVocab::default();
        Self { mode: Mode::Auto, draft_max: DRAFT_DEFAULT, draft: None, vocab, always: false, oracle: None }
    }
}

impl Options {
    /// No guesses.
    pub fn off() -> Self {
        Self { mode: Mode::Off, ..Self::default() }
    }

    /// Maximum number of guesses of one answer in a step.
    pub fn guesses(&self) -> usize {
        if self.mode == Mode::Off { 0 } else { self.draft_max.min(DRAFT_MAX) }
    }

    /// Maximum number of guesses of `slots` answers in a step.
    pub fn step_guesses(&self, slots: usize) -> usize {
        let most = self.guesses();
        (most * slots).min(STEP_GUESSES_MAX.max(most))
    }

    /// Whether the block for multi-token prediction is used.
    pub fn uses_mtp(&self) -> bool {
        matches!(self.mode, Mode::Auto | Mode::Mtp) && self.guesses() > 0
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, draft_max, draft, vocab, always, oracle } = self;
        let draft = draft.as_ref().map(|m| &m.origin);
        f.debug_struct("Options")
            .field("mode", mode)
            .field("draft_max", draft_max)
            .field("draft", &draft)
            .field("vocab", vocab)
            .field("always", always)
            .field("oracle", oracle)
            .finish()
    }
}

/// Counts of guesses since the engine was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Steps of an answer with guesses.
    pub drafts: u64,
    /// Computed guesses.
    pub drafted: u64,
    /// Accepted guesses.
    pub accepted: u64,
    /// Both by position in the step.
    pub accepted_at: [u64; POSITIONS],
}

/// The costs of guesses on this machine: of a drafting model measured when it was loaded, and updated since; of steps alone as they run.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Times of steps by their number of tokens.
    pub steps: Vec<(usize, Duration)>,
    /// A pass of the drafting model.
    pub draft: Duration,
    /// Time per token for which the block for multi-token prediction only computes keys and values.
    pub fill: Duration,
    /// Whether a model drafts: the block, or a small one.
    pub drafts: bool,
    /// Whether the model's block is loaded.
    pub has_mtp: bool,
}

/// One answer's guesses, and the success of its earlier ones.
#[derive(Debug, Clone, Default)]
pub struct Guesses {
    /// Guesses for the next positions.
    pub ids: Vec<u32>,
    /// The class of each.
    pub classes: Vec<Class>,
    /// Maximum useful number now; 0 if the next step yields no token.
    pub most: usize,
    /// The success of its guesses so far.
    pub history: History,
    /// Draft tokens that were computed.
    pub drafted: usize,
    /// Those of them that were right.
    pub accepted: usize,
    /// Number of tokens of the text that the block for multi-token prediction has processed.
    noted: usize,
    lookup: Option<Lookup>,
}

impl Guesses {
    /// For a text of up to `tokens` tokens.
    pub fn new(most: usize, lookup: bool, tokens: usize) -> Self {
        Self {
            ids: Vec::with_capacity(most),
            classes: Vec::with_capacity(most),
            lookup: (lookup && most > 0).then(|| Lookup::new(tokens)),
            ..Self::default()
        }
    }

    /// Whether a drafter may add guesses.
    fn is_open(&self) -> bool {
        self.most > 0 && self.ids.is_empty()
    }

    fn push(&mut self, id: u32, class: Class) {
        self.ids.push(id);
        self.classes.push(class);
    }

    /// Removes all guesses.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.classes.clear();
        self.most = 0;
    }
}

/// The input of a drafter.
pub(super) struct Work<'a> {
    pub model: &'a mut dyn Model,
    pub cache: &'a mut Cache,
    pub running: &'a mut [Running],
}

impl Work<'_> {
    /// Tokens of the next step besides those of one answer.
    fn others(&self) -> usize {
        let all: usize = self.running.iter().map(|r| usize::from(r.choice.guesses.most > 0)).sum();
        all.saturating_sub(1)
    }
}

/// A drafter. Called between steps, with all running answers.
pub(super) trait Drafter: Send {
    /// Writes guesses for answers that have none yet. Fails if a device failed.
    fn draft(&mut self, work: &mut Work<'_>, control: &mut Controller) -> Result<(), Error>;
    /// Called once after the model was loaded and has run a step: measures the cost of a draft for `control`.
    fn measure(&mut self, _model: &mut dyn Model, _control: &mut Controller) -> Result<(), Error> {
        Ok(())
    }
    /// False if the measurements show that it can never pay here: then it is dropped.
    fn can_pay(&self, _control: &Controller) -> bool {
        true
    }
    /// Whether it runs a model, which takes time.
    fn drafts(&self) -> bool {
        false
    }
    /// Called when an answer is complete.
    fn finished(&mut self, _choice: &Choice) {}
}

/// All drafters of an engine.
pub(super) struct Speculation {
    drafters: Vec<Box<dyn Drafter>>,
    pub control: Controller,
    pub stats: Stats,
    uses_lookup: bool,
    /// Guesses are paused, as if turned off.
    pub paused: bool,
    /// Maximum number of guesses of one answer.
    most: usize,
    /// Maximum number of guesses of all answers in a step.
    pub step_guesses: usize,
    /// Of the step that is planned.
    pub shared: Shared,
}

impl Speculation {
    /// The drafters of `options` for `model`, which was loaded from `file` with limits that allow for them. Fails if one is not possible.
    pub fn new(
        options: &Options,
        file: &octet_weights::Model,
        model: &dyn Model,
        engine: &super::Options,
    ) -> Result<Self, Error> {
        let limits = model.limits();
        let most = options.guesses().min(limits.guesses);
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        if options.mode == Mode::Mtp && !model.has_mtp() {
            let what = "has no block for multi-token prediction, which --speculative mtp requires";
            return Err(Error::Request(format!("{}: the model {what}", file.origin)));
        }
        if most > 0 {
            drafters.push(Box::new(forced::Forced));
            if options.mode == Mode::Auto && model.has_mtp() {
                drafters.push(Box::new(lookup::Repeated::better_than_drafts()));
            }
            if model.has_mtp() {
                drafters.push(Box::new(mtp::Block::new(model, options.mode == Mode::Auto)));
            } else if options.mode == Mode::Draft {
                drafters.push(Box::new(draft::Small::open(options, file, engine)?));
            }
            if matches!(options.mode, Mode::Auto | Mode::Lookup) {
                drafters.push(Box::new(lookup::Repeated::any()));
            }
            if let Some(chance) = options.oracle {
                drafters.push(Box::new(oracle::Oracle::new(chance)));
            }
        }
        Ok(Self {
            drafters,
            control: Controller::new(options.always),
            stats: Stats::default(),
            paused: false,
            uses_lookup: matches!(options.mode, Mode::Auto | Mode::Lookup),
            most,
            step_guesses: options.step_guesses(limits.slots),
            shared: Shared::default(),
        })
    }

    /// Measures the costs of guesses that a model drafts before anything runs, so that no answer is slowed by it. Drops a drafter that cannot
    /// pay. Takes a few steps of the model. Other guesses cost only their place in a step, and each step is timed: the first answer need not
    /// wait for measurements.
    pub fn measure(&mut self, model: &mut dyn Model) -> Result<(), Error> {
        let Self { drafters, control, .. } = self;
        if control.is_blind() || !drafters.iter().any(|d| d.drafts()) {
            return Ok(());
        }
        measure::steps(model, self.most, control)?;
        drafters.iter_mut().try_for_each(|d| d.measure(model, control))?;
        measure::reset(model);
        drafters.retain(|d| d.can_pay(control));
        Ok(())
    }

    /// The measurements; see [`Costs`].
    pub fn costs(&self, model: &dyn Model) -> Costs {
        let [_, draft, fill] = self.control.costs(1);
        let steps = measure::SIZES.into_iter().filter(|&n| n <= 1 + self.most);
        let steps = steps.map(|n| (n, self.control.costs(n)[0])).collect();
        let drafts = self.drafters.iter().any(|d| d.drafts());
        Costs { steps, draft, fill, drafts, has_mtp: model.has_mtp() }
    }

    /// Whether answers need a table of their text.
    pub fn uses_lookup(&self) -> bool {
        self.uses_lookup
    }
    /// Maximum number of guesses of one answer.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether guesses are drafted by models, which read what a step leaves.
    pub fn reads_steps(&self) -> bool {
        !self.paused && self.drafters.iter().any(|d| d.drafts())
    }

    /// Called after a step: makes guesses for the next one.
    pub fn draft(&mut self, work: &mut Work<'_>) -> Result<(), Error> {
        if self.paused {
            work.running.iter_mut().for_each(|r| r.choice.guesses.clear());
            return Ok(());
        }
        if self.drafters.is_empty() {
            return Ok(());
        }
        for r in work.running.iter_mut() {
            let choice = &mut r.choice;
            choice.guesses.clear();
            // The last token of the answer needs none after it.
            let left = choice.limit.saturating_sub(choice.generated() + 1);
            if !r.done
                && !r.lease.is_loading()
                && r.lease.computed + 1 == choice.tokens.len()
                && choice.generated() > 0
            {
                choice.guesses.most = self.most.min(left);
            }
        }
        let Self { drafters, control, .. } = self;
        drafters.iter_mut().try_for_each(|d| d.draft(work, control))
    }

    /// Called when an answer is complete.
    pub fn finished(&mut self, choice: &Choice) {
        self.drafters.iter_mut().for_each(|d| d.finished(choice));
    }

    /// Records a step in which an answer had `computed` guesses, of which `right` were accepted.
    pub fn settle(&mut self, guesses: &mut Guesses, computed: usize, right: usize) {
        self.control.settle(&mut guesses.history, self.shared, computed, right);
    }

    /// Records whether guess `place` of a step was accepted.
    pub fn record(&mut self, guesses: &mut Guesses, place: usize, right: bool) {
        self.control.record_guess(&mut guesses.history, guesses.classes[place], place, right);
        if right {
            guesses.accepted += 1;
            self.stats.accepted += 1;
            self.stats.accepted_at[place] += 1;
        }
    }
}
