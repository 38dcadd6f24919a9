//! Helpers of the engine's tests: opening tiny models on every backend, and running prompts through them.

pub mod drive;
pub mod encoders;

use octet_compute::Batch;
use octet_compute::backend::KvType;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;
use octet_engine::cache::{Pool, Sequence};
use octet_engine::models::{self, Limits, Model};
use octet_vulkan::{Vulkan, VulkanOptions};

/// A backend under test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum On {
    Reference,
    /// The CPU backend with f32 weights and activations.
    Exact(Isa),
    /// The CPU backend with its default settings.
    Cpu(Isa),
    /// The Vulkan backend on the device of this number.
    Vulkan(usize),
    /// The same with f32 weights and activations.
    ExactVulkan(usize),
}

/// Every backend that computes with full-precision weights and activations on this machine.
pub fn exact_backends() -> Vec<On> {
    let isas = Isa::ALL.into_iter().filter(|i| i.available());
    std::iter::once(On::Reference).chain(isas.map(On::Exact)).collect()
}

pub const CONTEXT: usize = 256;

pub fn limits() -> Limits {
    Limits {
        pages: 2 * CONTEXT / PAGE_TOKENS,
        page_groups: false,
        slots: 4,
        spare_slots: 0,
        snapshots: 0,
        batch_tokens: CONTEXT,
        batch_outputs: CONTEXT,
        guesses: 4,
        kv: KvType::F32.into(),
        mtp: true,
        draft_vocab: models::DraftVocab::default(),
    }
}

/// Opens a model of the reference data; `None` where there is none.
pub fn open(name: &str, on: On) -> Option<Box<dyn Model>> {
    let file = octet_weights::Model::open(&octet_testkit::shared(name)?).expect("a reference model opens");
    Some(load(&file, on, limits()))
}

pub fn load(file: &octet_weights::Model, on: On, limits: Limits) -> Box<dyn Model> {
    try_load(file, on, limits).expect("a reference model loads")
}

/// Loads a model, or says why that fails.
pub fn try_load(file: &octet_weights::Model, on: On, limits: Limits) -> Result<Box<dyn Model>, String> {
    let cpu = |isa, exact| {
        let options =
            CpuOptions { threads: Some(1), pin: false, isa: Some(isa), exact, ..CpuOptions::default() };
        Cpu::new(&options).expect("an instruction set that this machine has")
    };
    match on {
        On::Reference => models::load(file, Reference, limits, &mut |_, _| {}),
        On::Exact(isa) => models::load(file, cpu(isa, true), limits, &mut |_, _| {}),
        On::Cpu(isa) => models::load(file, cpu(isa, false), limits, &mut |_, _| {}),
        On::Vulkan(index) | On::ExactVulkan(index) => {
            let exact = matches!(on, On::ExactVulkan(_));
            let options = VulkanOptions { index, exact, lazy_kernels: true, ..VulkanOptions::default() };
            let device = Vulkan::new(&options).expect("a device that this machine has");
            models::load(file, device, limits, &mut |_, _| {})
        }
    }
    .map_err(|e| e.to_string())
}

/// A model and one sequence on it.
pub struct Run {
    pub model: Box<dyn Model>,
    pub pool: Pool,
    pub seq: Sequence,
    pub batch: Batch,
}

impl Run {
    pub fn new(model: Box<dyn Model>) -> Self {
        Self::with_context(model, CONTEXT)
    }

    /// With room for `context` tokens.
    pub fn with_context(mut model: Box<dyn Model>, context: usize) -> Self {
        let mut pool = Pool::new(&*model);
        let seq = pool.sequence(&mut *model, context).expect("a fresh pool has room");
        Self { model, pool, seq, batch: Batch::default() }
    }

    pub fn clear(&mut self) {
        self.pool.clear(&mut *self.model, &mut self.seq);
    }

    /// Feeds `tokens` in one step and returns the logits of all of them.
    pub fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.prepare(tokens);
        self.model.step(&self.batch).expect("the step works").to_vec()
    }

    pub fn prepare(&mut self, tokens: &[u32]) {
        self.pool.reserve(&mut self.seq, tokens.len()).expect("the prompt fits");
        self.batch.clear();
        self.batch.push(tokens, self.seq.tokens.len(), self.seq.slot, &self.seq.pages, tokens.len());
        self.seq.tokens.extend_from_slice(tokens);
    }

    /// Continues greedily after logits `last`.
    pub fn greedy(&mut self, last: &[f32], n: usize) -> Vec<u32> {
        let mut logits = last.to_vec();
        (0..n)
            .map(|_| {
                let id = argmax(&logits);
                logits = self.feed(&[id]);
                id
            })
            .collect()
    }
}

pub fn argmax(x: &[f32]) -> u32 {
    let best = x.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("a vocabulary is not empty").0 as u32
}

pub fn log_softmax(x: &[f32]) -> Vec<f32> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
    x.iter().map(|v| v - max - sum.ln() as f32).collect()
}
