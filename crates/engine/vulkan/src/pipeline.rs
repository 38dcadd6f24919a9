//! Kernels with their constants as pipelines: compiled together when a model is loaded, or at their first use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use ash::vk;
use octet_compute::Error;

use crate::device::Device;
use crate::kernel::Kernel;

/// Bytes of push constants that every device has.
pub(crate) const PUSH_BYTES: usize = 128;

/// A kernel and the values of its specialisation constants.
pub(crate) type PipelineKey = (Kernel, [u32; 4]);

/// A pipeline with the layout that binds its buffers.
#[derive(Clone, Copy)]
pub(crate) struct Pipeline {
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) set_layout: vk::DescriptorSetLayout,
}

/// A pipeline that is to be compiled.
#[derive(Clone, Copy)]
struct Source {
    key: PipelineKey,
    module: vk::ShaderModule,
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
}

fn failed(kernel: Kernel, e: vk::Result) -> Error {
    Error(format!("the driver cannot compile the kernel '{}': {e}. A newer driver may help", kernel.name()))
}

/// Calls `work` for each of `items` on up to `threads` threads, and `done` on this thread with each result. If the system refuses a thread,
/// the others do its part, or this one. After a failure no more work is started.
///
/// # Errors
/// The first failure of `work`.
fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R, Error> + Sync,
    done: &mut dyn FnMut(R),
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let work_through = |done: &mut dyn FnMut(Result<R, Error>)| {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = work(item);
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            done(result);
        }
    };
    let mut failure = None;
    let mut receive = |result| match result {
        Ok(result) => done(result),
        Err(e) => failure = failure.take().or(Some(e)),
    };
    std::thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        for _ in 0..threads.min(items.len()) {
            let sender = sender.clone();
            let mut send =
                move |result| sender.send(result).expect("the receiver lives as long as this scope");
            let work_through = &work_through;
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || work_through(&mut send));
            if thread.is_err() {
                break;
            }
        }
        drop(sender);
        results.into_iter().for_each(&mut receive);
        // Nothing is left, unless the system refused every thread.
        work_through(&mut receive);
    });
    failure.map_or(Ok(()), Err)
}

/// All pipelines of a device.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    modules: HashMap<Kernel, vk::ShaderModule>,
    /// By the number of buffers.
    layouts: HashMap<usize, (vk::DescriptorSetLayout, vk::PipelineLayout)>,
    made: HashMap<PipelineKey, Pipeline>,
    /// The driver's cache of compiled kernels, or why there is none.
    cache: Result<vk::PipelineCache, vk::Result>,
    /// Bytes that the driver's cache was created from: for tests.
    pub(crate) loaded_bytes: usize,
    /// Kernels that were compiled at their first use: for tests.
    pub(crate) late: Arc<Mutex<Vec<String>>>,
    /// Four bytes are multiplied by one instruction.
    pub(crate) dot: bool,
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        let d = &self.device.raw;
        // SAFETY: the backend waits for the device before it drops the pipelines, so none is in use.
        unsafe {
            self.made.values().for_each(|p| d.destroy_pipeline(p.raw, None));
            for (set, layout) in self.layouts.values() {
                d.destroy_pipeline_layout(*layout, None);
                d.destroy_descriptor_set_layout(*set, None);
            }
            self.modules.values().for_each(|m| d.destroy_shader_module(*m, None));
            d.destroy_pipeline_cache(self.cache.unwrap_or_default(), None);
        }
    }
}

impl Pipelines {
    /// `cached`: what [`Pipelines::cached`] returned on this device before; empty without.
    pub(crate) fn new(device: Arc<Device>, cached: &[u8]) -> Self {
        let dot = device.info.integer_dot;
        let info = vk::PipelineCacheCreateInfo::default().initial_data(cached);
        // SAFETY: `info` outlives the call. This driver wrote the data: `kernel_cache` has checked its hash.
        let cache = unsafe { device.raw.create_pipeline_cache(&info, None) };
        Self {
            device,
            modules: HashMap::new(),
            layouts: HashMap::new(),
            made: HashMap::new(),
            // Without a cache, kernels are only compiled more often. Saving them reports why there is none.
            cache,
            loaded_bytes: info.initial_data_size,
            late: Arc::default(),
            dot,
        }
    }

    /// The driver's compiled kernels as bytes.
    ///
    /// # Errors
    /// If the driver could not create its cache, or does not return it.
    pub(crate) fn cached(&self) -> Result<Vec<u8>, vk::Result> {
        let cache = self.cache?;
        // SAFETY: the cache is alive, and no other thread uses it now.
        unsafe { self.device.raw.get_pipeline_cache_data(cache) }
    }

    /// The number of compiled pipelines.
    pub(crate) fn count(&self) -> usize {
        self.made.len()
    }

    /// The pipeline of a kernel with these constants.
    pub(crate) fn get(&mut self, key: PipelineKey) -> Result<Pipeline, Error> {
        if let Some(p) = self.made.get(&key) {
            return Ok(*p);
        }
        let source = self.source(key)?;
        let pipeline = self.compile(&source)?;
        self.made.insert(key, pipeline);
        let late = format!("{} {:?}", key.0.name(), key.1);
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        Ok(pipeline)
    }

    /// Compiles those of `keys` that are missing, on all processors. Calls `progress` after each, with how many are done and how many there are.
    pub(crate) fn compile_all(
        &mut self,
        keys: &[PipelineKey],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let missing = keys.iter().filter(|key| !self.made.contains_key(key));
        let missing: Vec<PipelineKey> = missing.copied().collect();
        let sources = missing.iter().map(|key| self.source(*key)).collect::<Result<Vec<_>, _>>()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut compiled = Vec::with_capacity(sources.len());
        let this = &*self;
        let compile = |source: &Source| Ok((source.key, this.compile(source)?));
        let result = in_parallel(threads, &sources, compile, &mut |pipeline| {
            compiled.push(pipeline);
            progress(compiled.len(), sources.len());
        });
        // Kept even after a failure, so that they are destroyed in the end.
        self.made.extend(compiled);
        result
    }

    /// What a pipeline is compiled from.
    fn source(&mut self, key: PipelineKey) -> Result<Source, Error> {
        let kernel = key.0;
        let module = self.module(kernel).map_err(|e| failed(kernel, e))?;
        let (set_layout, layout) = self.layout(kernel.buffers()).map_err(|e| failed(kernel, e))?;
        Ok(Source { key, module, layout, set_layout })
    }

    /// Called from several threads: the driver synchronises its cache.
    fn compile(&self, source: &Source) -> Result<Pipeline, Error> {
        let Source { key: (kernel, constants), module, layout, set_layout } = *source;
        let entry = |id: u32| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 };
        let entries = [entry(0), entry(1), entry(2), entry(3)];
        let data: Vec<u8> = constants.iter().flat_map(|c| c.to_ne_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
        let cache = self.cache.unwrap_or_default();
        // SAFETY: module and layout are alive; what `info` points to outlives the call.
        let made = unsafe { self.device.raw.create_compute_pipelines(cache, &info, None) };
        let raw = made.map_err(|(_, e)| failed(kernel, e))?[0];
        Ok(Pipeline { raw, layout, set_layout })
    }

    fn module(&mut self, kernel: Kernel) -> Result<vk::ShaderModule, vk::Result> {
        if let Some(m) = self.modules.get(&kernel) {
            return Ok(*m);
        }
        let code = kernel.spirv(self.dot);
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the code is SPIR-V that glslc made and spirv-val checked.
        let module = unsafe { self.device.raw.create_shader_module(&info, None) }?;
        self.modules.insert(kernel, module);
        Ok(module)
    }

    fn layout(
        &mut self,
        buffers: usize,
    ) -> Result<(vk::DescriptorSetLayout, vk::PipelineLayout), vk::Result> {
        if let Some(layouts) = self.layouts.get(&buffers) {
            return Ok(*layouts);
        }
        let bindings: Vec<_> = (0..buffers as u32)
            .map(|i| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let range = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(PUSH_BYTES as u32)];
        // SAFETY: what the structures point to outlives the calls.
        unsafe {
            let set = self.device.raw.create_descriptor_set_layout(&info, None)?;
            let sets = [set];
            let info =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&range);
            let layout = self.device.raw.create_pipeline_layout(&info, None)?;
            self.layouts.insert(buffers, (set, layout));
            Ok((set, layout))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without threads, as if the system refused them, this thread does all the work.
    #[test]
    fn work_is_done_with_any_number_of_threads() {
        let items: Vec<usize> = (0..50).collect();
        for threads in [0, 1, 3, 100] {
            let mut results = Vec::new();
            in_parallel(threads, &items, |i| Ok(2 * i), &mut |r| results.push(r)).expect("no failure");
            results.sort_unstable();
            assert_eq!(results, items.iter().map(|i| 2 * i).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn no_work_is_started_after_a_failure() {
        for threads in [0, 1, 3] {
            let started = AtomicUsize::new(0);
            let fail = |_: &()| -> Result<(), Error> {
                started.fetch_add(1, Ordering::Relaxed);
                Err(Error("no".into()))
            };
            let result = in_parallel(threads, &[(); 1000], fail, &mut |()| panic!("nothing succeeds"));
            assert_eq!(result.expect_err("it fails").0, "no");
            // Each thread may have started on one before the first failed.
            assert!(started.into_inner() <= threads.max(1), "{threads} threads");
        }
    }
}
