//! Several tokens a step. Drafters guess the tokens that come next; the step computes them behind the token that is certain; and at each
//! position the model's own draw decides (`finish`). So text, probabilities and random numbers are those of a run without guesses, and
//! a wrong guess costs time alone: `controller` sees to it that little is lost.
//!
//! A drafter is a `Drafter`: `forced` (what a grammar leaves no choice about), `lookup` (what the text repeats), `mtp` (the model's own
//! block), `draft` (a small model). They are asked in this order, after each step, for the answers that have no guesses yet.

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

/// Who guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The block for multi-token prediction where the model has one and it pays on this machine, and lookup.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// The block for multi-token prediction; an error where the model has none.
    Mtp,
    /// The text itself.
    Lookup,
    /// A small model ([`Options::draft`]).
    Draft,
}

/// Most guesses of one answer in a step.
pub const DRAFT_MAX: usize = 16;
/// Those that are made unless somebody asks for others.
pub const DRAFT_DEFAULT: usize = 8;
/// Guesses of all answers together in a step; each needs a row of logits.
const STEP_GUESSES_MAX: usize = 32;
/// Tokens of a prompt that a draft model reads at a time.
pub(crate) const DRAFT_READ_TOKENS: usize = 256;
/// Answers that are guessed at so often that a statistic by position is worth it.
pub const POSITIONS: usize = DRAFT_MAX;

/// Speculative decoding.
#[derive(Clone)]
pub struct Options {
    /// Who guesses.
    pub mode: Mode,
    /// Most guesses of one answer in a step, at most [`DRAFT_MAX`]; 0 is none.
    pub draft_max: usize,
    /// A model for [`Mode::Draft`], with the same tokenizer.
    pub draft: Option<Arc<octet_weights::Model>>,
    /// The tokens that the block for multi-token prediction drafts among.
    pub vocab: DraftVocab,
    /// For tests: compute all guesses, whether that pays or not.
    pub always: bool,
    /// For measurements: replace all guesses by some that are right with this chance, 0 to 1.
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

    /// Guesses of one answer in a step.
    pub fn guesses(&self) -> usize {
        if self.mode == Mode::Off { 0 } else { self.draft_max.min(DRAFT_MAX) }
    }

    /// Guesses of `slots` answers in a step.
    pub fn step_guesses(&self, slots: usize) -> usize {
        let most = self.guesses();
        (most * slots).min(STEP_GUESSES_MAX.max(most))
    }

    /// Whether the block for multi-token prediction is of use.
    pub fn wants_mtp(&self) -> bool {
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

/// Guesses since the engine was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Steps of an answer that had guesses.
    pub drafts: u64,
    /// Guesses that were computed.
    pub drafted: u64,
    /// Those of them that were right.
    pub accepted: u64,
    /// The same by their place in their step, from the first on.
    pub accepted_at: [u64; POSITIONS],
}

/// What guesses cost on this machine: measured when the model was loaded, and since.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Times of steps by their tokens.
    pub steps: Vec<(usize, Duration)>,
    /// A pass of the drafting model.
    pub draft: Duration,
    /// A token of which the block for multi-token prediction only takes note.
    pub fill: Duration,
    /// A model drafts: the block, or a small one.
    pub drafts: bool,
    /// The model has the block, and it is loaded.
    pub has_mtp: bool,
}

/// One answer's guesses, and how its earlier ones did.
#[derive(Debug, Clone, Default)]
pub struct Guesses {
    /// For the positions that come next.
    pub ids: Vec<u32>,
    /// Of what kind each is.
    pub classes: Vec<Class>,
    /// Most that are of use now; 0 where the next step brings no token.
    pub most: usize,
    /// How its guesses did so far.
    pub history: History,
    /// Guesses that were computed.
    pub drafted: usize,
    /// Those of them that were right.
    pub accepted: usize,
    /// Tokens of the text that the block for multi-token prediction was told of.
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

    /// True where a drafter may write some.
    fn is_open(&self) -> bool {
        self.most > 0 && self.ids.is_empty()
    }

    fn push(&mut self, id: u32, class: Class) {
        self.ids.push(id);
        self.classes.push(class);
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.classes.clear();
        self.most = 0;
    }
}

/// What a drafter sees.
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

/// Something that guesses. Called between steps, with all that runs.
pub(super) trait Drafter: Send {
    /// Writes guesses for answers that have none yet. Fails where a device failed.
    fn draft(&mut self, work: &mut Work<'_>, control: &mut Controller) -> Result<(), Error>;
    /// Called once after the model was loaded and has made a step: tells `control` what a draft costs.
    fn measure(&mut self, _model: &mut dyn Model, _control: &mut Controller) -> Result<(), Error> {
        Ok(())
    }
    /// False where it can never pay here, as measured: then it is left out.
    fn can_pay(&self, _control: &Controller) -> bool {
        true
    }
    /// A model drafts, which takes time.
    fn drafts(&self) -> bool {
        false
    }
    /// An answer is complete.
    fn finished(&mut self, _choice: &Choice) {}
}

/// All drafters of an engine.
pub(super) struct Speculation {
    drafters: Vec<Box<dyn Drafter>>,
    pub control: Controller,
    pub stats: Stats,
    looks_up: bool,
    /// Nothing is guessed, as if it were off.
    pub paused: bool,
    /// Most guesses of one answer.
    most: usize,
    /// Most guesses of all answers in a step.
    pub step_guesses: usize,
    /// Of the step that is planned.
    pub shared: Shared,
}

impl Speculation {
    /// As `options` ask for `model`, which is loaded from `file` within limits for them. Fails where it cannot be had.
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
            let what = "has no block for multi-token prediction, which --speculative mtp asks for";
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
            looks_up: matches!(options.mode, Mode::Auto | Mode::Lookup),
            most,
            step_guesses: options.step_guesses(limits.slots),
            shared: Shared::default(),
        })
    }

    /// Measures what guesses cost here, before anything runs, so that no answer has to pay for it; a drafter that cannot pay is left
    /// out. Takes a few steps of the model.
    pub fn measure(&mut self, model: &mut dyn Model) -> Result<(), Error> {
        if self.most == 0 || self.control.is_blind() {
            return Ok(());
        }
        let Self { drafters, control, .. } = self;
        measure::steps(model, self.most, control)?;
        drafters.iter_mut().try_for_each(|d| d.measure(model, control))?;
        measure::forget(model);
        drafters.retain(|d| d.can_pay(control));
        Ok(())
    }

    /// What was measured; see [`Costs`].
    pub fn costs(&self, model: &dyn Model) -> Costs {
        let [_, draft, fill] = self.control.costs(1);
        let steps = measure::SIZES.into_iter().filter(|&n| n <= 1 + self.most);
        let steps = steps.map(|n| (n, self.control.costs(n)[0])).collect();
        let drafts = self.drafters.iter().any(|d| d.drafts());
        Costs { steps, draft, fill, drafts, has_mtp: model.has_mtp() }
    }

    /// Whether answers need a table of their text.
    pub fn looks_up(&self) -> bool {
        self.looks_up
    }
    /// Most guesses of one answer.
    pub fn most(&self) -> usize {
        self.most
    }

    /// After a step: guesses for the next one.
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

    /// An answer is complete.
    pub fn finished(&mut self, choice: &Choice) {
        self.drafters.iter_mut().for_each(|d| d.finished(choice));
    }

    /// A step is over in which an answer had `computed` guesses, of which `right` were right.
    pub fn settle(&mut self, guesses: &mut Guesses, computed: usize, right: usize) {
        self.control.settle(&mut guesses.history, self.shared, computed, right);
    }

    /// Guess `place` of a step was right, or not.
    pub fn record(&mut self, guesses: &mut Guesses, place: usize, right: bool) {
        self.control.record_guess(&mut guesses.history, guesses.classes[place], place, right);
        if right {
            guesses.accepted += 1;
            self.stats.accepted += 1;
            self.stats.accepted_at[place] += 1;
        }
    }
}
