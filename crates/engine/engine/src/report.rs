//! A report about a model file: its parts, the bytes that a token reads, its memory: `octet show`. Loads nothing; uses the metadata
//! and the tensor table only.

mod group;
mod slots;
mod text;

use std::collections::BTreeMap;

use octet_compute::backend::{KvTypes, LayerCache, WindowedPages};
use octet_compute::batch::{PAGE_TOKENS, PageGroup};
use octet_weights::{GgmlType, Metadata, TensorInfo};

use crate::Error;
use crate::models::config::Config;
use crate::models::derive::{self, Caches};
use crate::models::{self, Limits};
use crate::sampler::SamplingDefaults;

pub use group::Group;
pub use slots::drive_speed;

/// Facts about a model file. Bytes of weights are as in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The path, or another name of the model.
    pub origin: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Architecture, layers and dimensions.
    pub config: Config,
    /// The embedding table is also the output head.
    pub tied: bool,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of parameters.
    pub parameters: u64,
    /// Active parameters per token: those of the chosen experts, one row of the embedding, and all others. Each counts once, even if
    /// the embedding is also the output head.
    pub active_parameters: u64,
    /// Size of all tensors.
    pub bytes: u64,
    /// Bytes of weights read per decoded token.
    pub bytes_per_token: u64,
    /// The groups of this model, in the order of [`Group::ALL`].
    pub groups: Vec<GroupReport>,
    /// Types of all tensors, largest total size first.
    pub types: Vec<TypeShare>,
    /// The types of each layer's tensors.
    pub layers: Vec<Vec<TypeShare>>,
    /// The cache of each layer.
    pub caches: Vec<LayerCache>,
    /// The layer of each of them.
    pub cache_layers: Vec<usize>,
    /// The tokenizer, as far as the metadata describes it.
    pub tokenizer: TokenizerReport,
    /// Recommended sampling settings of the file.
    pub sampling: SamplingDefaults,
    /// Why its experts cannot stay in its files, if they cannot ([`Report::expert_slots`]).
    pub not_stored: Option<String>,
}

/// A group of tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupReport {
    /// The group.
    pub group: Group,
    /// Number of its tensors.
    pub tensors: usize,
    /// Number of its parameters.
    pub parameters: u64,
    /// Size of its tensors.
    pub bytes: u64,
    /// Active parameters per token.
    pub active_parameters: u64,
    /// Bytes read per decoded token.
    pub active_bytes: u64,
    /// Their types, largest total size first.
    pub types: Vec<TypeShare>,
}

/// Tensors of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TypeShare {
    pub ty: GgmlType,
    pub tensors: usize,
    pub bytes: u64,
}

/// Facts about the tokenizer; `None` if the file does not say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenizerReport {
    /// `gpt2`, `llama`, ..., or `tokenizer.json`.
    pub model: Option<String>,
    /// Name of the pre-tokenizer: `qwen35`.
    pub pre: Option<String>,
    /// Number of tokens without padding.
    pub tokens: Option<usize>,
    /// The BOS token, and whether it is added automatically.
    pub bos: Option<TokenReport>,
    /// See `bos`.
    pub add_bos: Option<bool>,
    /// Tokens that end an answer.
    pub eos: Vec<TokenReport>,
    /// Size of the chat template; `None` without one.
    pub template_bytes: Option<usize>,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenReport {
    /// Its id.
    pub id: u32,
    /// Its text, if the file lists the vocabulary.
    pub text: Option<String>,
}

/// Memory of a loaded model in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Weights, packed or copied; a tied table counts twice, as the head is packed and the table is not.
    pub weights: u64,
    /// Keys and values of all pages, but for those of [`Memory::states`].
    pub kv: u64,
    /// Recurrent states of all slots, spare ones included, and snapshots: of states, or of windows that the prefix cache keeps.
    pub states: u64,
    /// Activations and logits of a step; approximate, as backends keep slightly more.
    pub activations: u64,
    /// Speculative decoding: the block for multi-token prediction with its keys and values, its part of the head, inputs of recurrent
    /// layers, a draft model ([`crate::engine::Options::draft_memory`]).
    pub speculation: u64,
}

impl Memory {
    /// The total.
    pub fn total(&self) -> u64 {
        let parts = [self.weights, self.kv, self.states, self.activations, self.speculation];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The same with a draft model of `bytes` bytes.
    pub fn with_draft(self, bytes: u64) -> Self {
        Self { speculation: self.speculation.saturating_add(bytes), ..self }
    }
}

impl Report {
    /// Reads the report of `model`. Fails if loading it would: unknown architecture, missing dimensions.
    pub fn new(model: &octet_weights::Model) -> Result<Self, Error> {
        let config = Config::read(model)?;
        let meta = &model.metadata;
        let tied = model.info("output.weight").is_none() && config.encoder().is_none();
        let groups = groups(model.tensors(), &config, tied);
        let total = |f: fn(&GroupReport) -> u64| groups.iter().map(f).sum();
        let caches = Caches::new(&config.plan);
        Ok(Self {
            origin: model.origin.clone(),
            name: meta.opt_str("general.name")?.map(str::to_string),
            tied,
            tensors: model.tensors().len(),
            parameters: total(|g| g.parameters),
            active_parameters: total(|g| g.active_parameters),
            bytes: total(|g| g.bytes),
            bytes_per_token: total(|g| g.active_bytes),
            types: types(model.tensors()),
            groups,
            layers: layers(model.tensors(), &config),
            caches: caches.shape(false),
            cache_layers: caches.layers(),
            tokenizer: TokenizerReport::read(meta)?,
            sampling: SamplingDefaults::read(meta)?,
            not_stored: models::stored::obstacle(model, &config.plan, |name| {
                Group::of(name, &config) == Group::RoutedExperts
            }),
            config,
        })
    }

    /// The group `group`, if the model has it.
    pub fn group(&self, group: Group) -> Option<&GroupReport> {
        self.groups.iter().find(|g| g.group == group)
    }

    /// Fails if the model's heads cannot be stored in these types.
    pub fn check_kv(&self, kv: KvTypes) -> Result<(), Error> {
        derive::check_kv(&self.origin, &self.config.plan, kv)
    }

    /// Bytes of keys and values per position.
    pub fn kv_bytes_per_position(&self, kv: KvTypes) -> u64 {
        self.position_bytes(kv, |_| true)
    }

    /// The same of the layers of one group of pages.
    pub fn kv_bytes_of(&self, group: PageGroup, kv: KvTypes) -> u64 {
        self.position_bytes(kv, |c| c.group() == Some(group))
    }

    fn position_bytes(&self, kv: KvTypes, counts: impl Fn(&LayerCache) -> bool) -> u64 {
        let caches = self.caches.iter().filter(|c| counts(c));
        caches.map(|c| (c.page_bytes(kv) / PAGE_TOKENS) as u64).sum()
    }

    /// Bytes of a snapshot: the recurrent state, or the keys and values of a window; 0 for a model with neither.
    pub fn snapshot_bytes(&self, kv: KvTypes) -> u64 {
        derive::snapshot_bytes(&self.config.plan, kv)
    }

    /// The pages of layers with a window within these limits, if they have pages of their own; and how many of them running sequences do not
    /// need, which are for windows that the prefix cache keeps.
    pub fn windowed_pages(&self, limits: &Limits) -> Option<(WindowedPages, usize)> {
        let pages = derive::windowed_pages(&self.config.plan, limits)?;
        Some((pages, limits.snapshots.saturating_mul(derive::pages_of(pages.window))))
    }

    /// Bytes of recurrent state per sequence; 0 without recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        self.caches.iter().map(|c| c.slot_bytes() as u64).sum()
    }

    /// Bytes moved per decoded token at depth `depth`: weights, keys and values that it attends to, and the state, which is read and
    /// written.
    pub fn traffic_per_token(&self, depth: usize, kv: KvTypes) -> u64 {
        let seen = derive::window(&self.config.plan).map_or(depth, |w| depth - w.first(depth).min(depth));
        let of = |group, positions: usize| self.kv_bytes_of(group, kv).saturating_mul(positions as u64);
        let kv = of(PageGroup::All, depth).saturating_add(of(PageGroup::Windowed, seen));
        kv.saturating_add(self.bytes_per_token + 2 * self.state_bytes())
    }

    /// Memory of the model when loaded with these limits; with `exact`, all weights except the embedding table are f32. Omits padding
    /// rows of packed matrices.
    pub fn memory(&self, limits: &Limits, exact: bool) -> Memory {
        let c = &self.config;
        let mtp = limits.mtp && c.mtp_layers > 0;
        let packed = |g: &GroupReport| if exact { g.parameters.saturating_mul(4) } else { g.bytes };
        let weights = |g: &GroupReport| match g.group {
            // The block belongs to speculation.
            Group::Other | Group::Mtp => 0,
            // Tables stay as in the file.
            Group::Embedding if self.tied => g.bytes.saturating_add(packed(g)),
            Group::Embedding | Group::LayerEmbedding => g.bytes,
            _ => packed(g),
        };
        let weights = self.groups.iter().map(weights).fold(0, u64::saturating_add);
        let page = |group| self.kv_bytes_of(group, limits.kv).saturating_mul(PAGE_TOKENS as u64);
        let (all, windowed) = (page(PageGroup::All), page(PageGroup::Windowed));
        let (running, kept) = match self.windowed_pages(limits) {
            None => (limits.pages, 0),
            Some((of, kept)) => (of.pages - kept, kept),
        };
        let per_slot: u64 = self.caches.iter().map(|l| l.slot_bytes() as u64).sum();
        let times = |bytes: usize, n: usize| (bytes as u64).saturating_mul(n as u64);
        let tokens = times(4 * activation_row(c), limits.batch_tokens);
        // Inputs of guesses, besides the states.
        let guesses: u64 = self.caches.iter().map(|l| l.guess_bytes() as u64).sum();
        let guesses = guesses.saturating_mul(((limits.slots + limits.spare_slots) * limits.guesses) as u64);
        let slots = (limits.slots + limits.spare_slots) as u64;
        let block = if mtp { self.block_memory(limits, packed) } else { 0 };
        Memory {
            weights,
            kv: all
                .saturating_mul(limits.pages as u64)
                .saturating_add(windowed.saturating_mul(running as u64)),
            states: per_slot
                .saturating_mul(slots.saturating_add(limits.snapshots as u64))
                .saturating_add(windowed.saturating_mul(kept as u64)),
            activations: match c.encoder() {
                None => tokens.saturating_add(times(8 * c.vocab, limits.batch_outputs)),
                // It also has the states after the last norm, twice.
                Some(_) => tokens.saturating_add(times(8 * c.hidden, limits.batch_tokens)),
            },
            speculation: guesses.saturating_add(block),
        }
    }

    /// Memory of the block for multi-token prediction: its weights (by `packed`), a layer of keys and values, its part of the head,
    /// its states.
    fn block_memory(&self, limits: &Limits, packed: impl Fn(&GroupReport) -> u64) -> u64 {
        let c = &self.config;
        let weights = self.group(Group::Mtp).map_or(0, &packed);
        let page = Caches::new(&c.plan).mtp().page_bytes(limits.kv) as u64;
        let head = self.group(if self.tied { Group::Embedding } else { Group::LmHead }).map_or(0, packed);
        let rows = limits.draft_vocab.rows(c.vocab);
        let head = (u128::from(head) * rows as u128 / c.vocab.max(1) as u128) as u64;
        let states = (4 * c.hidden as u64).saturating_mul(2 * (limits.batch_tokens + limits.slots) as u64);
        weights
            .saturating_add(page.saturating_mul(limits.pages as u64))
            .saturating_add(head)
            .saturating_add(states)
    }
}

/// f32 values per token of a step: the residual stream, a mixer's inputs and output, and the intermediate values of the feed-forward
/// part.
fn activation_row(c: &Config) -> usize {
    let (w, s) = (derive::widths(&c.plan), derive::step_shape(&c.plan, 1, 1));
    let feed_forward = match c.moe {
        None => s.intermediate,
        Some(_) => s.experts + s.top_k * (s.expert_intermediate + c.hidden) + s.intermediate,
    };
    2 * c.hidden
        + w.qkv
        + w.kv[0]
        + w.kv[1]
        + w.decays
        + 2 * w.out.max(w.z)
        + w.sum
        + w.part
        + 2 * w.per_layer
        + 2 * w.streams[0]
        + if w.streams[0] > 0 { c.hidden } else { 0 }
        + feed_forward
}

fn groups(tensors: &[TensorInfo], config: &Config, tied: bool) -> Vec<GroupReport> {
    let mut members: BTreeMap<Group, Vec<&TensorInfo>> = BTreeMap::new();
    for t in tensors {
        members.entry(Group::of(&t.name, config)).or_default().push(t);
    }
    let tied_head = members.get(&Group::Embedding).filter(|_| tied).cloned();
    let report = |group| {
        let own = members.get(&group);
        // A tied head has no tensor of its own, and reads those of the embedding.
        let read = if group == Group::LmHead { own.or(tied_head.as_ref()) } else { own }?;
        let own = own.map_or(&[][..], Vec::as_slice);
        let sum = |of: &[&TensorInfo], f: &dyn Fn(&TensorInfo) -> u64| of.iter().map(|t| f(t)).sum();
        Some(GroupReport {
            group,
            tensors: own.len(),
            parameters: sum(own, &|t| t.len() as u64),
            bytes: sum(own, &TensorInfo::size_bytes),
            // The row of a tied table is one of those that the head reads.
            active_parameters: match (group, tied) {
                (Group::Embedding, true) => 0,
                _ => sum(read, &|t| active(t.len() as u64, group, t, config)),
            },
            active_bytes: sum(read, &|t| active(t.size_bytes(), group, t, config)),
            types: types(read.iter().copied()),
        })
    };
    Group::ALL.into_iter().filter_map(report).collect()
}

/// The types of the tensors of each layer that are loaded.
fn layers(tensors: &[TensorInfo], config: &Config) -> Vec<Vec<TypeShare>> {
    let mut members: Vec<Vec<&TensorInfo>> = vec![Vec::new(); config.layers];
    for t in tensors {
        let number =
            t.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        let of = number.and_then(|i| members.get_mut(i));
        if let Some(of) = of.filter(|_| Group::of(&t.name, config) != Group::Other) {
            of.push(t);
        }
    }
    members.into_iter().map(types).collect()
}

/// The part of `amount` (parameters or bytes of `t`) that one token needs.
fn active(amount: u64, group: Group, t: &TensorInfo, config: &Config) -> u64 {
    match (group, config.moe) {
        (Group::RoutedExperts, Some(m)) => amount * m.top_k as u64 / m.experts as u64,
        (Group::Embedding | Group::LayerEmbedding, _) => amount / (t.shape[0] as u64).max(1),
        (Group::Mtp | Group::Other, _) => 0,
        _ => amount,
    }
}

fn types<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Vec<TypeShare> {
    let mut by_type: BTreeMap<GgmlType, TypeShare> = BTreeMap::new();
    for t in tensors {
        let share = by_type.entry(t.ty).or_insert(TypeShare { ty: t.ty, tensors: 0, bytes: 0 });
        share.tensors += 1;
        share.bytes += t.size_bytes();
    }
    let mut all: Vec<_> = by_type.into_values().collect();
    all.sort_by_key(|s| std::cmp::Reverse(s.bytes));
    all
}

/// Padding rows of the embedding table (`tokenizer.ggml.token_type`).
const TOKEN_TYPE_UNUSED: i64 = 5;
const EOS_IDS: &str = "tokenizer.ggml.eos_token_ids";

fn token_id(meta: &Metadata, id: i64) -> Result<u32, Error> {
    let bad = || octet_weights::Error::key(meta.file(), EOS_IDS, format!("holds {id}, which is no token id"));
    u32::try_from(id).map_err(|_| bad().into())
}

impl TokenizerReport {
    fn read(meta: &Metadata) -> Result<Self, Error> {
        let string = |key: &str| Ok::<_, Error>(meta.opt_str(key)?.map(str::to_string));
        let vocabulary = meta.opt_strs("tokenizer.ggml.tokens")?;
        let types = meta.opt_ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        let padding = types.iter().rev().take_while(|&&t| t == TOKEN_TYPE_UNUSED).count();
        let token = |id: u32| TokenReport { id, text: vocabulary.and_then(|v| v.get(id as usize)).cloned() };
        let id = |key: &str| Ok::<_, Error>(meta.opt_u32(&format!("tokenizer.ggml.{key}"))?.map(token));
        // Checkpoints may list several end tokens; GGUF has the first.
        let eos = match meta.opt_ints(EOS_IDS)? {
            Some(ids) => ids.iter().map(|&i| token_id(meta, i).map(token)).collect::<Result<_, _>>()?,
            None => id("eos_token_id")?.into_iter().collect(),
        };
        let kept = [
            ("tokenizer.huggingface.json", "tokenizer.json"),
            ("tokenizer.tekken.json", "tekken.json"),
            ("tokenizer.tiktoken.model", "tiktoken.model"),
        ];
        let kept = kept.into_iter().find(|(key, _)| meta.get(key).is_some());
        Ok(Self {
            model: string("tokenizer.ggml.model")?.or(kept.map(|(_, file)| file.to_string())),
            pre: string("tokenizer.ggml.pre")?,
            tokens: vocabulary.map(|v| v.len().saturating_sub(padding)),
            bos: id("bos_token_id")?,
            add_bos: meta.opt_bool("tokenizer.ggml.add_bos_token")?,
            eos,
            template_bytes: meta.opt_str("tokenizer.chat_template")?.map(str::len),
        })
    }
}
