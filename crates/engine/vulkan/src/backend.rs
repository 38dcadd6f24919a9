//! The backend: weights and caches on a device, and the verbs as stages of kernels (`verbs/`). Created by whoever loads a model.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::picks::Pick;
use octet_compute::{Error, ExpertCounts};
use octet_weights::Matrix;

use crate::ahead::Shared;
use crate::block::Block;
pub use crate::cache::Cache;
use crate::cache::DELTA_DIM_MAX;
pub(crate) use crate::cache::LayerStore;
use crate::device::{Device, DeviceInfo, DeviceKind};
use crate::experts::Paged;
use crate::kernel_cache::KernelCache;
use crate::memory::{Buffer, Memory, MemoryLimit, Place};
use crate::pace::Pace;
use crate::picks::Picker;
use crate::record::Recorder;
pub(crate) use crate::steps::Prologue;
use crate::steps::{Flight, REPLAY_TOKENS_MAX, Step};
use crate::transfer::{Copies, STAGING_BYTES};
use crate::verbs::{Scratch, Target, Update, is_supported};
use crate::weights::DeviceType;

/// Which device to use, and how.
#[derive(Debug, Clone, Default)]
pub struct VulkanOptions {
    /// The device's index in the list of [`crate::devices`].
    pub index: usize,
    /// How much of its memory to use. Default: all that is free.
    pub memory_limit: Option<MemoryLimit>,
    /// Compute with f32 weights and activations: exact, but large and slow.
    pub exact: bool,
    /// Keep the experts in the host's memory, and this many of each layer, the most recently used ones, in the device's memory. Default: all
    /// experts are in the device's memory.
    pub expert_slots: Option<usize>,
    /// Several invocations share a stripe of a row (the columns that one lane sums), so that more reads are under way; changes no bit. Default: on,
    /// except on software devices.
    pub shared_stripes: Option<bool>,
    /// Compile each kernel at its first use instead of with the model. For tests, whose models need few kernels.
    pub lazy_kernels: bool,
    /// Folder for compiled kernels, which the next start reads. Default: they are not saved.
    pub kernel_cache: Option<PathBuf>,
    /// Called with messages for people, such as that compiling takes long.
    pub notice: Option<fn(&str)>,
    /// Bytes of the machine's memory that are free, if known: asked before steps are first submitted ahead, which takes a copy of the embedding table.
    pub free_memory: Option<fn() -> Option<u64>>,
}

/// f32 values on the device.
#[derive(Clone)]
pub struct Buf {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) len: usize,
    /// The values of a small vector: the host reads rotation frequencies.
    pub(crate) host: Option<Arc<[f32]>>,
}

/// A projection on the device, or a stack of one projection of each expert.
#[derive(Clone)]
pub struct Weight {
    pub(crate) ty: DeviceType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) quants: Arc<Buffer>,
    pub(crate) high: Arc<Buffer>,
    pub(crate) scales: Arc<Buffer>,
    pub(crate) bias: Option<Arc<Buffer>>,
    /// Matrices of the stack.
    pub(crate) count: usize,
    /// The experts in the host's memory, if the planes above are slots.
    pub(crate) paged: Option<Paged>,
}

/// An embedding table. It stays in the host's memory, and the host reads its rows.
pub struct Embedding {
    pub(crate) table: Arc<Matrix>,
    /// Its bytes where the device can read them, too: for tokens that the device picked.
    pub(crate) shared: Shared,
}

/// A device with the weights and caches of a model.
pub struct Vulkan {
    pub(crate) memory: Memory,
    pub(crate) recorder: Recorder,
    pub(crate) scratch: Option<Scratch>,
    /// Of the steps of either side.
    pub(crate) blocks: Option<[Block; 2]>,
    pub(crate) picker: Option<Picker>,
    pub(crate) dummy: Arc<Buffer>,
    pub(crate) staging: Arc<Buffer>,
    /// A second queue, if the device has one for copies.
    pub(crate) copies: Option<Copies>,
    /// Prologue of the step that is being recorded.
    pub(crate) prologue: Vec<Prologue>,
    /// Values of embeddings in the block that this step uses so far.
    pub(crate) rows_used: usize,
    /// The buffer whose rows are also in the scratch memory in 8 bits: the last output of attention or Gated DeltaNet.
    pub(crate) prepared: Option<Arc<Buffer>>,
    /// `step` is running, so the batch is in the block.
    pub(crate) in_step: bool,
    /// The step was submitted in parts, so it cannot be replayed.
    pub(crate) is_split: bool,
    pub(crate) steps: VecDeque<Step>,
    /// Which blocks, picks and counts the last submitted step uses; and the last one that has ended.
    pub(crate) side: usize,
    pub(crate) read_side: usize,
    /// The step being recorded takes its tokens from the picks of the step before.
    pub(crate) follows: bool,
    /// Submitted steps that nobody has waited for, in their order.
    pub(crate) flights: VecDeque<Flight>,
    /// Steps may be submitted ahead.
    pub(crate) is_ahead_allowed: bool,
    /// Which steps are submitted stage by stage.
    pub(crate) pace: Pace,
    /// The first failure since the last step. This step or the next one returns it.
    pub(crate) fault: Option<Error>,
    /// Columns of the widest embedding table.
    pub(crate) embed_cols: usize,
    /// Columns of the widest projection.
    pub(crate) cols_max: usize,
    /// Weights are unpacked to f32.
    pub(crate) exact: bool,
    /// See [`VulkanOptions::shared_stripes`].
    pub(crate) shares_stripes: bool,
    pub(crate) expert_slots: Option<usize>,
    /// Barriers and kernels of the last step.
    pub(crate) last_step: (u32, u32),
    /// Tokens of the last step.
    pub(crate) tokens: usize,
    /// Bytes of one expert of each layer.
    pub(crate) expert_bytes: Vec<u64>,
    /// Bytes read by all steps.
    pub(crate) bytes_read: u64,
    /// The layers whose experts it runs: with several devices, others run the rest.
    pub(crate) own_layers: Range<usize>,
    pub(crate) lazy_kernels: bool,
    pub(crate) kernel_cache: Option<KernelCache>,
    pub(crate) notice: Option<fn(&str)>,
    pub(crate) free_memory: Option<fn() -> Option<u64>>,
    pub(crate) device: Arc<Device>,
}

/// Positions of a chunk of attention.
pub(crate) const CHUNK_TOKENS: usize = 256;

/// Number of chunks of the longest context in a batch, rounded up to a power of two: the grid of attention.
pub(crate) fn chunks(batch: &Batch) -> usize {
    let own = batch.positions().iter().max().map_or(1, |p| *p as usize + 1);
    // Tokens of a block see positions after their own.
    let seen = batch.blocks().into_iter().flatten().map(|[_, end]| *end as usize).max();
    let longest = own.max(seen.unwrap_or(0));
    longest.div_ceil(CHUNK_TOKENS).next_power_of_two()
}

impl Vulkan {
    /// Opens a device.
    pub fn new(options: &VulkanOptions) -> Result<Self, Error> {
        let device = Device::open(options.index)?;
        let memory = Memory::new(device.clone(), options.memory_limit.clone());
        let kernel_cache = options.kernel_cache.as_ref().map(|folder| {
            let name = format!("{}, {}", device.info.name, device.info.driver);
            KernelCache::new(folder, &name, device.kernels_id)
        });
        let cached =
            kernel_cache.as_ref().map(|cache| cache.load_or_report(options.notice)).unwrap_or_default();
        // Without memory for it, copies take the queue of the kernels.
        let copies = device.copy_queue.and_then(|queue| Copies::new(&device, &memory, queue).ok());
        let recorder = Recorder::new(device.clone(), device.queue, &cached)?;
        Ok(Self {
            dummy: memory.buffer(16, Place::Device)?,
            staging: memory.buffer(STAGING_BYTES, Place::Host)?,
            copies,
            memory,
            recorder,
            scratch: None,
            blocks: None,
            picker: None,
            prologue: Vec::new(),
            rows_used: 0,
            prepared: None,
            in_step: false,
            is_split: false,
            steps: VecDeque::new(),
            side: 0,
            read_side: 0,
            follows: false,
            flights: VecDeque::new(),
            is_ahead_allowed: true,
            pace: Pace::default(),
            fault: None,
            embed_cols: 1,
            cols_max: 1,
            exact: options.exact,
            shares_stripes: options.shared_stripes.unwrap_or(device.info.kind != DeviceKind::Software),
            expert_slots: options.expert_slots,
            last_step: (0, 0),
            tokens: 0,
            expert_bytes: Vec::new(),
            bytes_read: 0,
            own_layers: 0..usize::MAX,
            lazy_kernels: options.lazy_kernels,
            kernel_cache,
            notice: options.notice,
            free_memory: options.free_memory,
            device,
        })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    /// For people: the device's name and number.
    pub fn describe(&self) -> String {
        format!("vulkan:{} ({})", self.device.info.index, self.device.info.name)
    }

    /// Everything that its results depend on to the last bit: the kernels and the driver that compiles them.
    pub fn numerics(&self) -> String {
        let exact = if self.exact { ", f32" } else { "" };
        format!("vulkan 5, {}, {}{exact}", self.device.info.name, self.device.info.driver)
    }

    /// Bytes of the device's memory in use.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    /// Barriers and kernels of the last step.
    pub fn last_step(&self) -> (u32, u32) {
        self.last_step
    }

    /// Calls `f`, unless something has failed since the last step. Keeps its error.
    pub(crate) fn guard(&mut self, f: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.fault.is_none()
            && let Err(e) = f(self)
        {
            self.recorder.abandon();
            self.fault = Some(e);
        }
    }
}

impl Backend for Vulkan {
    type Buf = Buf;
    type Weight = Weight;
    type Experts = Weight;
    type Embedding = Embedding;
    type Cache = Cache;
    const RUNS_AHEAD: bool = true;

    fn buf(&mut self, len: usize) -> Result<Buf, Error> {
        Ok(Buf { buffer: self.zeroed(4 * len as u64)?, len, host: None })
    }
    fn vector(&mut self, values: &[f32]) -> Result<Buf, Error> {
        let host = (values.len() <= 4096).then(|| values.into());
        Ok(Buf { buffer: self.floats(values)?, len: values.len(), host })
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Weight, Error> {
        self.pack(std::slice::from_ref(m), bias)
    }
    fn supports(&self, part: Part) -> bool {
        is_supported(part)
    }
    fn experts(&mut self, m: &[Matrix], bias: Option<&[f32]>) -> Result<Weight, Error> {
        match self.expert_slots {
            // With a slot for each, no expert would ever be read from the host's memory.
            Some(slots) if slots < m.len() => self.paged_experts(m, slots, bias),
            _ => self.pack(m, bias),
        }
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Embedding, Error> {
        self.embed_cols = self.embed_cols.max(m.cols);
        // Rows are read as long as the model is loaded, and the file may be truncated meanwhile.
        let table = m.in_memory();
        let table =
            table.map_err(|e| Error(format!("no memory for {} bytes of embeddings: {e}", m.data.len())))?;
        Ok(Embedding { table: Arc::new(table), shared: Shared::Untried })
    }
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        let store = |l: &LayerCache| LayerStore::new(l, shape, |bytes| self.zeroed(bytes));
        let layers = shape.layers.iter().map(store).collect::<Result<_, _>>()?;
        // Pairs of rotated dimensions, at most.
        let pairs = |l: &LayerCache| if let LayerCache::Kv { k_dim, .. } = l { k_dim / 2 } else { 1 };
        let pairs = shape.layers.iter().map(pairs).max().unwrap_or(1).max(1);
        // Where some layers have pages of their own, a sequence has a second table.
        let tables = (1 + usize::from(shape.windowed.is_some())) * shape.pages * shape.slots.max(1);
        // Steps that are submitted ahead are small.
        let block = |tokens| Block::new(&self.memory, tokens, tables, pairs, self.embed_cols);
        self.blocks = Some([block(step.tokens)?, block(step.tokens.min(REPLAY_TOKENS_MAX))?]);
        let [_, _, v_heads, k_dim, ..] = step.recurrent;
        if k_dim > DELTA_DIM_MAX {
            return Err(Error(format!(
                "key heads of {k_dim} values are not supported on this device: it takes up to {DELTA_DIM_MAX}"
            )));
        }
        let scratch = Scratch::new(&self.memory, &step, self.cols_max, shape.layers.len(), v_heads)?;
        self.recorder.clear(&scratch.tickets, 0, scratch.tickets.bytes)?;
        self.recorder.flush()?;
        self.scratch = Some(scratch);
        self.slot_tables(&step, shape.layers.len())?;
        Ok(Cache { layers, kv: shape.kv })
    }

    fn borrow<'a>(&'a self, _: &'a Buf) -> Option<&'a [f32]> {
        None // It is in the device's memory.
    }
    fn read(&mut self, src: &Buf, out: &mut [f32]) {
        let mut bytes = vec![0; 4 * out.len()];
        self.guard(|be| be.download(&src.buffer, 0, &mut bytes));
        for (x, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*b);
        }
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        self.guard(|be| be.clear_state(cache, slot));
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        if from != to {
            self.guard(|be| be.copy_state(cache, from, to));
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, group: PageGroup, from: usize, to: usize) {
        if from != to {
            self.guard(|be| be.copy_keys_and_values(cache, group, from, to));
        }
    }
    fn copy_rows(&mut self, from: &Weight, to: &mut Weight, rows: &[(u32, u32)]) {
        self.guard(|be| be.copy_weight_rows(from, to, rows));
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, out: &mut [u8]) {
        self.guard(|be| be.download_slot(cache, slot, out));
    }
    fn load_slot(&mut self, cache: &mut Cache, slot: usize, data: &[u8]) {
        self.guard(|be| be.upload_slot(cache, slot, data));
    }
    fn save_page(&mut self, cache: &Cache, group: PageGroup, page: usize, out: &mut [u8]) {
        self.guard(|be| be.download_page(cache, group, page, out));
    }
    fn load_page(&mut self, cache: &mut Cache, group: PageGroup, page: usize, data: &[u8]) {
        self.guard(|be| be.upload_page(cache, group, page, data));
    }

    fn step(&mut self, pass: Pass, batch: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        if self.is_noting_kernels() {
            self.note_kernels(body);
            return Ok(());
        }
        self.discard_steps()?;
        if let Some(e) = self.fault.take() {
            return Err(e);
        }
        self.side = 0;
        let flight = self.start(pass, batch, body)?;
        self.end(flight).map(|_| ())
    }

    fn can_follow(&mut self, table: &mut Embedding, rows: usize) -> bool {
        Vulkan::can_follow(self, table, rows)
    }

    fn submit(&mut self, batch: &Batch, follows: bool, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        if self.is_noting_kernels() {
            self.follows = follows;
            self.note_kernels(body);
            self.follows = false;
            return Ok(());
        }
        self.submit_step(batch, follows, body)
    }

    fn wait(&mut self) -> Result<bool, Error> {
        self.wait_for_step()
    }

    fn discard(&mut self) -> Result<(), Error> {
        self.discard_steps()
    }

    fn compile_kernels(&mut self, steps: impl FnOnce(&mut Self)) -> Result<(), Error> {
        if self.lazy_kernels { Ok(()) } else { Vulkan::compile_kernels(self, steps) }
    }

    fn has_failed(&self) -> bool {
        self.fault.is_some()
    }

    fn records_routes(&self) -> bool {
        true
    }

    fn count_experts(&mut self, counts: &ExpertCounts) {
        self.guard(|be| be.add_counts(counts));
    }

    fn prepare_picks(&mut self, rows: usize, vocab: usize, sampleable: &[u32]) -> Result<bool, Error> {
        self.make_picker(rows, vocab, sampleable)
    }

    fn pick(&mut self, rows: usize, logits: &Buf) {
        self.guard(|be| be.pick_rows(rows, logits));
    }

    fn picks(&mut self, row: usize, out: &mut Vec<Pick>) -> bool {
        let mut is_found = false;
        self.guard(|be| {
            is_found = be.read_picks(row, out)?;
            Ok(())
        });
        is_found
    }

    fn embed(&mut self, batch: &Batch, table: &Embedding, row: TableRow, scale: f32, out: &mut Buf) {
        self.guard(|be| be.embed_rows(batch, table, row, scale, out));
    }

    fn project<const N: usize>(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        w: [&Weight; N],
        out: [&mut Buf; N],
    ) {
        self.guard(|be| be.norm_linears(n, x, norm, &w, &out.map(|o| o.buffer.clone())));
    }

    fn linear(&mut self, n: usize, x: &Buf, w: &Weight, out: Out<Self>) {
        self.guard(|be| be.project_add(n, x, w, Target::of(out)));
    }

    fn place(&mut self, to: &[u32], width: usize, x: &Buf, place: [usize; 2], out: Out<Self>) {
        self.guard(|be| be.place_rows(to, width, x, place, Target::of(out)));
    }

    fn per_head(&mut self, n: usize, x: &Buf, w: &Weight, rest: usize, out: &mut Buf) {
        self.guard(|be| be.product_by_heads(n, x, w, rest, out));
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Buf,
        kv: Option<(&mut Buf, &Buf)>,
    ) {
        self.guard(|be| be.rope(batch, a, layer, cache, q, kv.map(|(k, v)| [&*k, v])));
    }

    fn attend(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        out: &mut Buf,
    ) {
        self.guard(|be| be.attention(batch, a, layer, cache, q, out));
    }

    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Cache,
        qkv: &[&Buf],
        z: &Buf,
        b: &Buf,
        alpha: &Buf,
        out: &mut Buf,
    ) {
        self.guard(|be| be.delta_net(batch, g, layer, cache, qkv, [z, b, alpha], out));
    }

    fn ssm(
        &mut self,
        batch: &Batch,
        s: &Ssm<Self>,
        layer: usize,
        cache: &mut Cache,
        z: &Buf,
        xbc: &Buf,
        dt: &Buf,
        out: &mut Buf,
    ) {
        self.guard(|be| be.mamba(batch, s, layer, cache, [z, xbc, dt], out));
    }

    fn short_conv(
        &mut self,
        batch: &Batch,
        s: &ShortConv<Self>,
        layer: usize,
        cache: &mut Cache,
        bcx: &Buf,
        out: &mut Buf,
    ) {
        self.guard(|be| be.short_convolution(batch, s, layer, cache, bcx, out));
    }

    fn multiply(&mut self, n: usize, width: usize, times: Times, x: &mut Buf, y: &Buf, place: [usize; 2]) {
        self.guard(|be| be.multiply_rows(n, width, times, x, y, place));
    }

    fn clamp(&mut self, len: usize, bounds: [f32; 2], x: &mut Buf) {
        self.guard(|be| be.clamp_elements(len, bounds, x));
    }

    fn glu(&mut self, n: usize, x: Option<&Buf>, norm: Option<&Norm<Self>>, g: &Glu<Weight>, out: Out<Self>) {
        self.guard(|be| {
            let to = Target::of(out);
            be.dense(n, x.unwrap_or(to.buf), norm, g, to).and_then(|()| be.end_of_layer(n))
        });
    }

    fn moe(
        &mut self,
        n: usize,
        x: Option<&Buf>,
        norm: Option<&Norm<Self>>,
        m: &Moe<Self>,
        layer: usize,
        _: &ExpertCounts,
        out: Out<Self>,
    ) {
        self.guard(|be| {
            let to = Target::of(out);
            be.mixture(n, x.unwrap_or(to.buf), norm, m, layer, to).and_then(|()| be.end_of_layer(n))
        });
    }

    fn logits(&mut self, batch: &Batch, h: &Buf, head: &Head<Self>, out: &mut Buf) {
        self.guard(|be| be.head(batch, h, head, out));
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Buf, norm: &Norm<Self>, out: &mut Buf) {
        self.guard(|be| be.norm_outputs(batch, h, norm, out));
    }

    fn norm(&mut self, n: usize, x: Option<&Buf>, norm: &Norm<Self>, out: Out<Self>) {
        self.guard(|be| {
            let to = Target::of(out);
            be.norm_rows(n, x.unwrap_or(to.buf), norm, to)
        });
    }

    fn add(&mut self, len: usize, x: Option<&Buf>, scale: f32, out: &mut Buf) {
        self.guard(|be| be.add_elements(len, x, scale, out));
    }

    fn predict_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Buf,
        h: &mut Buf,
        rest: &mut Buf,
        kept: &mut Buf,
    ) {
        self.guard(|be| be.update_streams(n, a, Update::Predict, routed, [h, rest, kept]));
    }

    fn correct_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Buf,
        h: &mut Buf,
        rest: &mut Buf,
        kept: &mut Buf,
    ) {
        self.guard(|be| be.update_streams(n, a, Update::Correct, routed, [h, rest, kept]));
    }
}
