//! How to load a model: from the flags, and from its entry in a configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::ValueEnum;
use octet_compute::backend::KvType;
use octet_config::{EngineSettings, KeepAlive};
use octet_engine::engine::{DiskOptions, Options as EngineOptions, Pooling};
use octet_engine::report::Report;
use octet_engine::scheduler;
use octet_serve::{ModelSpec, OnDevice, ToolSyntax};
use serde_json::{Map, Value};

use super::ServeArgs;
use super::memory_plan::{self, MemoryPlan};
use crate::args::{IsaArg, KvArg};
use crate::chat::TEXT_BYTES_MAX;
use crate::device::{Among, DeviceFlags, least};
use crate::device_memory::Split;
use crate::images::{self, ImageFlags};
use crate::memory::SERVER_BYTES;
use crate::model::{Place, locate, open};
use crate::sampling::defaults;
use crate::settings::Settings;

/// Prompt tokens scored at once (`echo` with `logprobs`): each needs a row of logits.
const SCORE_TOKENS: usize = 32;

/// Settings for loading a model.
#[derive(Debug, Clone)]
pub struct Load {
    engine: EngineOptions,
    device: DeviceFlags,
    images: ImageFlags,
    queue: usize,
    disk_bytes: u64,
    /// The source of the template.
    pub chat_template: Option<String>,
    template_kwargs: Map<String, Value>,
    tool_syntax: Option<ToolSyntax>,
    keep_alive: Option<Duration>,
    pooling: Option<Pooling>,
    predict: Option<u32>,
    reasoning_budget: Option<u32>,
    check: bool,
    memory_limit: Option<u64>,
    /// The user leaves the number of a step's tokens open.
    steps_may_grow: bool,
    /// The machine's free memory before any model was loaded. Models share it: one is unloaded to make room for another.
    free: Option<u64>,
}

impl Load {
    /// From the flags.
    pub fn of(args: &ServeArgs, settings: &Settings) -> anyhow::Result<Self> {
        let s = &args.server;
        Ok(Self {
            engine: EngineOptions {
                max_seqs: s.parallel,
                score_tokens: SCORE_TOKENS,
                kv_tokens: s.kv_tokens,
                snapshot_memory: s.cache_ram,
                disk: s.cache_disk.clone().map(|dir| DiskOptions { dir, bytes: s.cache_disk_size }),
                sampling: s.sampling.defaults(&s.more_samplers)?,
                ..args.engine.options(settings)?
            },
            device: args.engine.device.clone(),
            images: s.images.clone(),
            queue: s.max_queue,
            disk_bytes: s.cache_disk_size,
            chat_template: s.template()?,
            template_kwargs: s.template_kwargs(),
            tool_syntax: s.tool_call_parser.clone(),
            keep_alive: s.keep_alive.0,
            pooling: s.pooling,
            predict: s.predict(),
            reasoning_budget: s.reasoning_budget(),
            check: !args.engine.memory.no_memory_check,
            memory_limit: args.engine.limit.memory_limit,
            steps_may_grow: args.engine.steps_may_grow(),
            free: crate::memory::available(),
        })
    }

    /// Limits the memory of all models of the server, unless a flag does.
    pub fn limited(mut self, memory: Option<u64>) -> Self {
        self.memory_limit = memory;
        self
    }

    /// Adds the settings of a configuration entry; its relative paths are relative to `base`.
    pub fn with(mut self, entry: &EngineSettings, base: &Path, settings: &Settings) -> anyhow::Result<Self> {
        let e = &mut self.engine;
        if let Some(how) = &entry.speculative {
            crate::speculation::set(&mut e.speculation, how, |name| open(&model_name(name, base)?, settings))
                .context("speculative")?;
        }
        e.speculation.draft_max = entry.draft_max.unwrap_or(e.speculation.draft_max);
        e.context = entry.ctx_size.or(e.context);
        let step = [entry.ubatch_size, entry.batch_size].into_iter().flatten().min();
        e.batch_tokens = step.unwrap_or(e.batch_tokens);
        self.steps_may_grow &= step.is_none();
        let kv = |key: &str, name: &Option<String>| -> anyhow::Result<Option<KvType>> {
            name.as_ref().map(|name| Ok(choice::<KvArg>(key, name)?.into())).transpose()
        };
        let both = kv("kv_cache_dtype", &entry.kv_cache_dtype)?;
        e.kv.keys = kv("cache_type_k", &entry.cache_type_k)?.or(both).unwrap_or(e.kv.keys);
        e.kv.values = kv("cache_type_v", &entry.cache_type_v)?.or(both).unwrap_or(e.kv.values);
        e.cpu.threads = entry.threads.or(e.cpu.threads);
        if let Some(name) = &entry.isa {
            e.cpu.isa = Some(choice::<IsaArg>("isa", name)?.into());
        }
        e.cpu.pin = entry.no_pin.map_or(e.cpu.pin, |no| !no);
        e.cpu.exact = entry.exact.unwrap_or(e.cpu.exact);
        match entry.no_packed {
            Some(true) => e.cpu.packed_files = None,
            Some(false) => e.cpu.packed_files = crate::packed::files(),
            None => {}
        }
        e.max_seqs = entry.parallel.unwrap_or(e.max_seqs);
        e.kv_tokens = entry.kv_tokens.or(e.kv_tokens);
        e.snapshot_memory = entry.cache_ram.or(e.snapshot_memory);
        let disk_bytes = entry.cache_disk_size.unwrap_or(self.disk_bytes);
        if let Some(dir) = &entry.cache_disk {
            super::check_folder(dir)?;
            e.disk = Some(DiskOptions { dir: dir.clone(), bytes: disk_bytes });
        } else if let Some(disk) = &mut e.disk {
            disk.bytes = disk_bytes;
        }
        self.queue = entry.max_queue.unwrap_or(self.queue);
        self.check = entry.no_memory_check.map_or(self.check, |no| !no);
        if let Some(path) = &entry.chat_template {
            // Read again at each reload, which must not block.
            let text = octet_config::read_file(path, TEXT_BYTES_MAX);
            self.chat_template = Some(text.with_context(|| path.display().to_string())?);
        }
        if let Some(name) = &entry.tool_call_parser {
            self.tool_syntax = Some(name.parse().map_err(|e| anyhow::anyhow!("tool_call_parser: {e}"))?);
        }
        match entry.keep_alive {
            Some(KeepAlive::For(time)) => self.keep_alive = Some(time),
            Some(KeepAlive::Forever) => self.keep_alive = None,
            None => {}
        }
        Ok(self)
    }

    /// One of `of` models, and its memory plan. Downloads it if necessary, and estimates its memory; loads nothing.
    pub fn spec(
        &self,
        name: &str,
        model: &str,
        of: usize,
        settings: &Settings,
    ) -> anyhow::Result<(ModelSpec, String)> {
        let place = locate(model, settings)?;
        let written = modified(&place)?;
        let file = open(model, settings)?;
        let report = Report::new(&file)?;
        let free = crate::memory::available().max(self.free).filter(|_| self.check);
        // Its share of the limit, so that all models fit together; the whole limit if the share is too small.
        let share = self.memory_limit.map(|l| l / of.max(1) as u64);
        let maker = crate::maker::of(model);
        if self.chat_template.is_none() {
            maker.note_template(model, &file.metadata, settings);
        }
        let sampling = defaults(&file.metadata, self.engine.sampling.clone().or(&maker.sampling))?;
        let context = self.engine.context.or(maker.context);
        let vision = self.images.tower(&file)?.split().0;
        let engine = EngineOptions { sampling, context, vision, ..self.engine.clone() };
        let wanted = memory_plan::wanted(&report, &engine);
        let among = Among { of, taken: 0 };
        let bill = match self.device.place(&wanted, among, least(free, self.memory_limit), self.check)? {
            Some(placement) => MemoryPlan::on_device(&report, placement),
            None => {
                let left = free.map(|bytes| bytes.saturating_sub(SERVER_BYTES));
                let plan = |limit| MemoryPlan::new(&report, &engine, least(left, limit), self.steps_may_grow);
                let bill = plan(share)?;
                let bill = match bill.fits(&report) && bill.options.cpu.expert_slots.is_none() {
                    true => bill,
                    false => plan(self.memory_limit)?,
                };
                bill.check(&report, free)?;
                let stored = crate::memory::stored(&file, &report, &bill.options.cpu);
                bill.with_stored(stored)
            }
        };
        let split = bill.split();
        let mut text = bill.text(name, &report);
        let device = bill.options.device.as_ref().map(|d| d.name().to_string());
        if let Some(vision) = &bill.options.vision {
            text += &format!("  {}\n", images::describe(vision, device.as_deref()));
        }
        let open = move || place.open().map_err(octet_serve::BoxError::from);
        let spec = ModelSpec {
            created_s: written.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs()),
            on_device: split.zip(device).map(|(split, name)| self.on_device(split, name)),
            options: scheduler::Options { engine: bill.options, queue: self.queue },
            chat_template: self.chat_template.clone(),
            template_kwargs: self.template_kwargs.clone(),
            tool_syntax: self.tool_syntax.clone(),
            keep_alive: self.keep_alive,
            pooling: self.pooling,
            predict: self.predict.or_else(|| maker.predict.and_then(|n| u32::try_from(n).ok())),
            reasoning_budget: self.reasoning_budget,
            defaults: maker.defaults(),
            ..ModelSpec::new(name, Arc::new(open))
        };
        Ok((spec, text))
    }
}

/// When the model's file was last changed. Fails for what is neither a regular file nor a folder.
fn modified(place: &Place) -> anyhow::Result<Option<SystemTime>> {
    let meta = match place {
        // The built-in model is a part of the program's file.
        Place::Inside => std::env::current_exe().ok().and_then(|program| program.metadata().ok()),
        Place::Path(path) => {
            let meta = path.metadata().ok();
            // Opening a pipe would wait for its writer.
            let special = meta.as_ref().is_some_and(|m| !m.is_file() && !m.is_dir());
            anyhow::ensure!(!special, "{}: it is neither a regular file nor a folder", path.display());
            meta
        }
    };
    Ok(meta.and_then(|m| m.modified().ok()))
}

impl Load {
    /// The memory that a model uses on the device called `name`.
    fn on_device(&self, split: Split, name: String) -> OnDevice {
        let (check, asked) = (self.check, name.clone());
        OnDevice {
            name,
            bytes: split.device,
            machine_bytes: split.machine,
            free: Arc::new(move || crate::device::free_bytes(&asked).filter(|_| check)),
            limit: self.device.gpu_memory(),
        }
    }
}

fn choice<T: ValueEnum>(key: &str, name: &str) -> anyhow::Result<T> {
    T::from_str(name, true)
        .map_err(|_| anyhow::anyhow!("'{name}' is not a valid value"))
        .context(key.to_string())
}

/// The model of an entry as on the command line: paths are relative to the configuration's folder.
pub fn model_name(model: &str, base: &Path) -> anyhow::Result<String> {
    if crate::embedded::is(model) {
        return Ok(model.to_string());
    }
    Ok(match crate::model::reference(model)? {
        octet_hub::Reference::Path(path) if path.is_relative() => base.join(path).display().to_string(),
        _ => model.to_string(),
    })
}
