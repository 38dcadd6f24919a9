//! Command buffers: dispatches in stages with one barrier between two stages, copies, submission and replay.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use octet_compute::Error;

use crate::device::{Device, Queue};
use crate::faults::{Faults, TIME_MAX_S, failed};
use crate::kernel::{BUFFERS_MAX, Kernel};
use crate::memory::Buffer;
use crate::pipeline::{PUSH_BYTES, PipelineKey, Pipelines};
use crate::timer::Timer;
use crate::traffic::Traffic;

/// Descriptor sets of a pool; each dispatch takes one.
const SETS_PER_POOL: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// The recorded commands of a step, which can be submitted any number of times, and everything that they use.
pub(crate) struct Recording {
    commands: vk::CommandBuffer,
    /// The pools of its descriptor sets. The last one has room.
    pools: Vec<vk::DescriptorPool>,
    /// Sets allocated from the last pool.
    sets: u32,
    /// Kept alive while the commands may run.
    buffers: Vec<Arc<Buffer>>,
    /// Its barriers.
    pub(crate) barriers: u32,
    /// Its kernels.
    pub(crate) dispatches: u32,
    is_empty: bool,
    /// Something was recorded since the last barrier.
    is_dirty: bool,
}

/// A kernel to start, with its specialisation constants, its buffers in the order of the bindings, its push constants and its workgroups.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub(crate) kernel: Kernel,
    pub(crate) constants: [u32; 4],
    pub(crate) buffers: Vec<Arc<Buffer>>,
    pub(crate) push: Vec<u32>,
    pub(crate) groups: [u32; 3],
}

/// Records and runs commands on one of a device's queues. Submissions run in their order; each recording waits for all before it.
pub(crate) struct Recorder {
    device: Arc<Device>,
    queue: Queue,
    pool: vk::CommandPool,
    /// A timeline semaphore: the number of the last submission that has ended.
    ended: vk::Semaphore,
    /// Number of the last submission, and of the last one that was waited for.
    submitted: u64,
    /// A semaphore of another queue, and the number that submissions wait for.
    after: Option<(vk::Semaphore, u64)>,
    /// The number that the last submission waited for: for tests.
    pub(crate) last_after: Option<u64>,
    waited: u64,
    pub(crate) pipelines: Pipelines,
    /// Command buffers and pools of descriptor sets that no recording uses.
    free: Vec<vk::CommandBuffer>,
    free_pools: Vec<vk::DescriptorPool>,
    /// All pools, for `drop`.
    all_pools: Vec<vk::DescriptorPool>,
    open: Option<Recording>,
    /// If set, nothing is recorded, and the keys of pipelines are collected here. Then they are compiled together.
    pub(crate) wanted: Option<HashSet<PipelineKey>>,
    /// The last kernel, until the next call: it may be replaced by a kernel with a tail.
    held: Option<Dispatch>,
    /// Kernels deferred to the next stage, which does not depend on them.
    later: Vec<Dispatch>,
    /// Recordings that may still run on a lost device. They are kept until the device has stopped.
    stuck: Vec<Recording>,
    /// Submits after each stage.
    pub(crate) by_stage: bool,
    /// Time of all submissions since this was last set to zero.
    pub(crate) spent: Duration,
    /// Skips the barrier with this number, to test that validation reports it.
    pub(crate) skip_barrier: Option<u32>,
    /// Submits nothing: for tests with validation.
    pub(crate) is_dry: bool,
    /// Starts the kernels of these names with one workgroup too few, as a faulty driver might: for tests.
    pub(crate) broken_kernels: Vec<String>,
    /// A submission reported a lost device, or did not finish in time.
    pub(crate) is_lost: bool,
    /// Number of submissions until one reports a lost device: for tests.
    pub(crate) lose_after: Option<u32>,
    /// Reads of the step that is recorded.
    pub(crate) traffic: Traffic,
    /// Measures the stages of what is recorded, if it is there.
    pub(crate) timer: Option<Timer>,
    /// Faults to inject into submissions: for tests.
    pub(crate) faults: Option<Arc<Faults>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: after the wait nothing runs; pools and semaphore belong to this recorder. A lost device needs no wait.
        unsafe {
            let _ = self.device.raw.device_wait_idle();
            self.device.raw.destroy_command_pool(self.pool, None);
            self.all_pools.iter().for_each(|p| self.device.raw.destroy_descriptor_pool(*p, None));
            self.device.raw.destroy_semaphore(self.ended, None);
        }
    }
}

impl Recorder {
    /// For this queue of the device. `cached`: see [`Pipelines::new`].
    pub(crate) fn new(device: Arc<Device>, queue: Queue, cached: &[u8]) -> Result<Self, Error> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(queue.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device is alive; what is made is destroyed by `drop`.
        let (pool, ended) = unsafe {
            let pool = device.raw.create_command_pool(&info, None).map_err(|e| failed("starting", e))?;
            let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            (pool, device.raw.create_semaphore(&info, None))
        };
        let pipelines = Pipelines::new(device.clone(), cached);
        let ended = ended.map_err(|e| {
            // SAFETY: the pool is not used yet.
            unsafe { device.raw.destroy_command_pool(pool, None) };
            failed("starting", e)
        })?;
        Ok(Self {
            device,
            queue,
            pool,
            ended,
            submitted: 0,
            after: None,
            last_after: None,
            waited: 0,
            pipelines,
            free: Vec::new(),
            free_pools: Vec::new(),
            all_pools: Vec::new(),
            open: None,
            wanted: None,
            held: None,
            later: Vec::new(),
            stuck: Vec::new(),
            by_stage: false,
            spent: Duration::ZERO,
            skip_barrier: None,
            is_dry: false,
            broken_kernels: Vec::new(),
            is_lost: false,
            lose_after: None,
            traffic: Traffic::default(),
            timer: None,
            faults: None,
        })
    }

    /// The open recording; begins one if there is none.
    fn open(&mut self) -> Result<&mut Recording, Error> {
        if self.open.is_none() {
            let d = &self.device.raw;
            let commands = match self.free.pop() {
                Some(commands) => commands,
                None => {
                    let info = vk::CommandBufferAllocateInfo::default()
                        .command_pool(self.pool)
                        .level(vk::CommandBufferLevel::PRIMARY)
                        .command_buffer_count(1);
                    // SAFETY: the pool is alive.
                    unsafe { d.allocate_command_buffers(&info) }.map_err(|e| failed("recording", e))?[0]
                }
            };
            // SAFETY: the command buffer is not running: it is new, or its recording was over.
            unsafe { d.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }
                .map_err(|e| failed("recording", e))?;
            self.open = Some(Recording {
                commands,
                pools: Vec::new(),
                sets: SETS_PER_POOL,
                buffers: Vec::new(),
                barriers: 0,
                dispatches: 0,
                is_empty: true,
                is_dirty: false,
            });
            // Makes writes of the host and of earlier submissions visible.
            self.barrier_now(vk::AccessFlags::HOST_WRITE);
            if let Some(timer) = &mut self.timer {
                timer.begin(commands);
            }
        }
        Ok(self.open.as_mut().expect("just opened"))
    }

    /// Records a barrier. `more`: accesses before it, besides those of kernels and copies.
    fn barrier_now(&mut self, more: vk::AccessFlags) {
        let Some(open) = &mut self.open else { return };
        let (stages, access) = (self.queue.stages, self.queue.reads() | self.queue.writes());
        let barrier = [vk::MemoryBarrier::default().src_access_mask(access | more).dst_access_mask(access)];
        let from = if more.is_empty() { stages } else { stages | vk::PipelineStageFlags::HOST };
        // SAFETY: the command buffer is being recorded.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(
                open.commands,
                from,
                stages,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
        }
    }

    /// Ends a stage: later commands see its writes. Does nothing if the stage is empty.
    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        self.barrier_beside()?;
        self.end_stage();
        if self.by_stage { self.flush() } else { Ok(()) }
    }

    /// Ends a stage, as [`Recorder::barrier`] does, and starts the deferred kernels in the next one.
    pub(crate) fn barrier_beside(&mut self) -> Result<(), Error> {
        self.start_held()?;
        self.end_stage();
        std::mem::take(&mut self.later).iter().try_for_each(|d| self.start(d))
    }

    /// Starts `kernel` at the next call, unless that is [`Recorder::take_held`].
    pub(crate) fn hold(&mut self, kernel: Dispatch) -> Result<(), Error> {
        self.start_held()?;
        self.held = Some(kernel);
        Ok(())
    }

    /// Returns the held kernel, if `is_wanted`. The caller starts it, or one that does the same and more.
    pub(crate) fn take_held(&mut self, is_wanted: impl FnOnce(&Dispatch) -> bool) -> Option<Dispatch> {
        self.held.take_if(|d| is_wanted(d))
    }

    /// Defers `kernel` to the next stage.
    pub(crate) fn defer(&mut self, kernel: Dispatch) {
        self.later.push(kernel);
    }

    fn start_held(&mut self) -> Result<(), Error> {
        self.held.take().map_or(Ok(()), |d| self.start(&d))
    }

    fn end_stage(&mut self) {
        let Some(open) = &mut self.open else { return };
        if !open.is_dirty {
            return;
        }
        open.is_dirty = false;
        open.barriers += 1;
        if self.skip_barrier != Some(open.barriers) {
            self.barrier_now(vk::AccessFlags::empty());
        }
        self.end_time();
    }

    /// Ends the time of a stage.
    fn end_time(&mut self) {
        if let (Some(timer), Some(open)) = (&mut self.timer, &self.open) {
            timer.end_stage(open.commands, self.traffic);
        }
    }

    /// Allocates a descriptor set for the open recording.
    fn descriptor_set(&mut self, layout: vk::DescriptorSetLayout) -> Result<vk::DescriptorSet, Error> {
        self.open()?;
        let open = self.open.as_mut().expect("just opened");
        let d = &self.device.raw;
        if open.sets == SETS_PER_POOL {
            let pool = match self.free_pools.pop() {
                Some(pool) => pool,
                None => {
                    let sizes = [vk::DescriptorPoolSize::default()
                        .ty(vk::DescriptorType::STORAGE_BUFFER)
                        .descriptor_count(SETS_PER_POOL * BUFFERS_MAX as u32)];
                    let info =
                        vk::DescriptorPoolCreateInfo::default().max_sets(SETS_PER_POOL).pool_sizes(&sizes);
                    // SAFETY: the device is alive; the pool is destroyed by `drop`.
                    let pool = unsafe { d.create_descriptor_pool(&info, None) }
                        .map_err(|e| failed("recording", e))?;
                    self.all_pools.push(pool);
                    pool
                }
            };
            open.pools.push(pool);
            open.sets = 0;
        }
        open.sets += 1;
        let layouts = [layout];
        let pool = *open.pools.last().expect("a recording with sets has a pool");
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: pool and layout are alive.
        let sets = unsafe { d.allocate_descriptor_sets(&info) }.map_err(|e| failed("recording", e))?;
        Ok(sets[0])
    }

    /// Starts `kernel` with `groups` workgroups. `buffers` are in the order of its bindings.
    pub(crate) fn dispatch(
        &mut self,
        kernel: Kernel,
        constants: [u32; 4],
        buffers: &[&Arc<Buffer>],
        push: &[u32],
        groups: [u32; 3],
    ) -> Result<(), Error> {
        let buffers = buffers.iter().map(|b| (*b).clone()).collect();
        self.start(&Dispatch { kernel, constants, buffers, push: push.to_vec(), groups })
    }

    /// Starts a kernel in the current stage.
    pub(crate) fn start(&mut self, what: &Dispatch) -> Result<(), Error> {
        self.start_held()?;
        let Dispatch { kernel, constants, buffers, push, groups } = what;
        let (kernel, constants) = (*kernel, *constants);
        assert!(buffers.len() == kernel.buffers() && 4 * push.len() <= PUSH_BYTES, "{}", kernel.name());
        let mut groups = *groups;
        if self.broken_kernels.iter().any(|name| name == kernel.name()) {
            groups[0] = groups[0].saturating_sub(1);
        }
        if groups.contains(&0) {
            return Ok(());
        }
        if let Some(wanted) = &mut self.wanted {
            wanted.insert((kernel, constants));
            return Ok(());
        }
        let pipeline = self.pipelines.get((kernel, constants))?;
        let set = self.bind(pipeline.set_layout, buffers)?;
        let mut bytes = [0u8; PUSH_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(push) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        if let Some(timer) = &mut self.timer {
            timer.note(kernel.name(), groups.iter().map(|n| u64::from(*n)).product());
        }
        let open = self.open()?;
        let commands = open.commands;
        open.dispatches += 1;
        (open.is_empty, open.is_dirty) = (false, true);
        let (d, sets) = (&self.device.raw, [set]);
        let (point, compute) = (vk::PipelineBindPoint::COMPUTE, vk::ShaderStageFlags::COMPUTE);
        // SAFETY: the command buffer is being recorded; pipeline, layout and set are alive, and stay so while the recording exists.
        unsafe {
            d.cmd_bind_pipeline(commands, point, pipeline.raw);
            d.cmd_bind_descriptor_sets(commands, point, pipeline.layout, 0, &sets, &[]);
            d.cmd_push_constants(commands, pipeline.layout, compute, 0, &bytes[..4 * push.len().max(1)]);
            d.cmd_dispatch(commands, groups[0], groups[1], groups[2]);
        }
        Ok(())
    }

    /// A descriptor set with these buffers, which the recording keeps alive.
    fn bind(
        &mut self,
        layout: vk::DescriptorSetLayout,
        buffers: &[Arc<Buffer>],
    ) -> Result<vk::DescriptorSet, Error> {
        let set = self.descriptor_set(layout)?;
        let infos: [vk::DescriptorBufferInfo; BUFFERS_MAX] = std::array::from_fn(|i| {
            let raw = buffers.get(i).map_or(vk::Buffer::null(), |b| b.raw);
            vk::DescriptorBufferInfo::default().buffer(raw).range(vk::WHOLE_SIZE)
        });
        let writes: [vk::WriteDescriptorSet<'_>; BUFFERS_MAX] = std::array::from_fn(|i| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(i as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&infos[i..i + 1])
        });
        // SAFETY: the set was just allocated, so no command uses it; `infos` outlives the call.
        unsafe { self.device.raw.update_descriptor_sets(&writes[..buffers.len()], &[]) };
        self.open()?.buffers.extend(buffers.iter().cloned());
        Ok(set)
    }

    /// Copies `bytes` bytes. The ranges must not overlap.
    pub(crate) fn copy(
        &mut self,
        from: (&Arc<Buffer>, u64),
        to: (&Arc<Buffer>, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        assert!(from.1 + bytes <= from.0.bytes && to.1 + bytes <= to.0.bytes, "a copy beyond a buffer's end");
        if bytes == 0 || self.wanted.is_some() {
            return Ok(());
        }
        self.start_held()?;
        let open = self.open()?;
        open.buffers.extend([from.0.clone(), to.0.clone()]);
        (open.is_empty, open.is_dirty) = (false, true);
        let commands = open.commands;
        let region = [vk::BufferCopy { src_offset: from.1, dst_offset: to.1, size: bytes }];
        // SAFETY: the command buffer is being recorded; both ranges lie within their buffers, which stay alive.
        unsafe { self.device.raw.cmd_copy_buffer(commands, from.0.raw, to.0.raw, &region) };
        Ok(())
    }

    /// Fills whole words with zeros.
    pub(crate) fn clear(&mut self, buffer: &Arc<Buffer>, at: u64, bytes: u64) -> Result<(), Error> {
        assert!(at + bytes <= buffer.bytes, "a fill beyond the buffer's end");
        if bytes == 0 || self.wanted.is_some() {
            return Ok(());
        }
        self.start_held()?;
        let open = self.open()?;
        open.buffers.push(buffer.clone());
        (open.is_empty, open.is_dirty) = (false, true);
        let commands = open.commands;
        // SAFETY: the command buffer is being recorded; the range lies within the buffer, which stays alive.
        unsafe { self.device.raw.cmd_fill_buffer(commands, buffer.raw, at, bytes, 0) };
        Ok(())
    }

    /// Ends the open recording and returns it, unless it is empty.
    pub(crate) fn finish(&mut self) -> Result<Option<Recording>, Error> {
        self.start_held()?;
        if !self.later.is_empty() {
            self.barrier_beside()?;
        }
        if self.open.as_ref().is_some_and(|open| open.is_dirty) {
            self.end_time();
        }
        let Some(recording) = self.open.take() else { return Ok(None) };
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(self.queue.writes())
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        // SAFETY: the command buffer is being recorded, and ended here.
        let ended = unsafe {
            self.device.raw.cmd_pipeline_barrier(
                recording.commands,
                self.queue.stages,
                vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
            self.device.raw.end_command_buffer(recording.commands)
        };
        ended.map_err(|e| failed("recording", e))?;
        if recording.is_empty {
            self.recycle(recording);
            return Ok(None);
        }
        Ok(Some(recording))
    }

    /// Later submissions see what those of `other`, on another queue, have written that ended and were waited for.
    pub(crate) fn follow(&mut self, other: &Self) {
        self.after = Some((other.ended, other.waited));
    }

    /// Submits a recording and waits for its end.
    pub(crate) fn run(&mut self, recording: &Recording) -> Result<(), Error> {
        let start = Instant::now();
        let done = self.submit(recording).and_then(|number| self.wait_for(number));
        self.spent += start.elapsed();
        done.map(|_| ())
    }

    /// Submits a recording, which must not be running. Returns the submission's number, for [`Recorder::wait_for`].
    pub(crate) fn submit(&mut self, recording: &Recording) -> Result<u64, Error> {
        if let Some(left) = &mut self.lose_after {
            if *left == 0 {
                self.is_lost = true;
                return Err(failed("computing", vk::Result::ERROR_DEVICE_LOST));
            }
            *left -= 1;
        }
        self.injected_fault()?;
        if self.is_dry {
            return Ok(self.submitted);
        }
        let (commands, ended, number) = ([recording.commands], [self.ended], [self.submitted + 1]);
        let (other, other_number) = self.after.unzip();
        let (stages, count) = ([self.queue.stages], usize::from(other.is_some()));
        let (other, other_number) = ([other.unwrap_or_default()], [other_number.unwrap_or_default()]);
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&other_number[..count])
            .signal_semaphore_values(&number);
        let submit = vk::SubmitInfo::default()
            .command_buffers(&commands)
            .wait_semaphores(&other[..count])
            .wait_dst_stage_mask(&stages[..count])
            .signal_semaphores(&ended)
            .push_next(&mut values);
        // SAFETY: the commands were ended, and do not run; each submission signals a larger number than the one before.
        let sent = unsafe { self.device.raw.queue_submit(self.queue.raw, &[submit], vk::Fence::null()) };
        self.is_lost |= sent == Err(vk::Result::ERROR_DEVICE_LOST);
        sent.map_err(|e| failed("computing", e))?;
        self.submitted += 1;
        self.last_after = other_number[..count].first().copied();
        Ok(self.submitted)
    }

    /// Waits until the submission with this number has ended, and those before it. Returns whether it was still running.
    pub(crate) fn wait_for(&mut self, number: u64) -> Result<bool, Error> {
        if number <= self.waited {
            return Ok(false);
        }
        let (ended, numbers) = ([self.ended], [number]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&ended).values(&numbers);
        // SAFETY: the semaphore is alive, and a submission signals this number.
        let waits = |ns: u64| unsafe { self.device.raw.wait_semaphores(&wait, ns) };
        let mut done = waits(0);
        let was_running = done == Err(vk::Result::TIMEOUT);
        for _ in 0..TIME_MAX_S {
            if done != Err(vk::Result::TIMEOUT) {
                break;
            }
            done = waits(SECOND_NS);
        }
        self.waited = number;
        // Whatever the reason, the commands may still run.
        self.is_lost |= done.is_err();
        done.map_err(|e| failed("computing", e))?;
        self.injected_fault()?;
        self.timer.as_mut().map_or(Ok(()), Timer::collect)?;
        Ok(was_running)
    }

    /// Waits until all submissions have ended.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), Error> {
        self.wait_for(self.submitted).map(|_| ())
    }

    /// The fault that a test wants to see here.
    fn injected_fault(&mut self) -> Result<(), Error> {
        let Some(fault) = self.faults.as_ref().and_then(|f| f.take()) else { return Ok(()) };
        self.is_lost |= fault == vk::Result::ERROR_DEVICE_LOST;
        Err(failed("computing", fault))
    }

    /// Frees a recording's command buffer and descriptor sets for other recordings.
    pub(crate) fn recycle(&mut self, recording: Recording) {
        if self.is_lost {
            self.stuck.push(recording);
            return;
        }
        for pool in recording.pools {
            // SAFETY: the caller has waited for the end; if it was not seen, the device is marked as lost. So the recording does not run
            // any more, and none of the pool's sets is in use.
            let reset =
                unsafe { self.device.raw.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()) };
            if reset.is_ok() {
                self.free_pools.push(pool);
            }
        }
        self.free.push(recording.commands);
    }

    /// Ends, submits and recycles the open recording.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if let Some(recording) = self.finish()? {
            let done = self.run(&recording);
            self.recycle(recording);
            done?;
        }
        Ok(())
    }

    /// Fails if the device is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_lost { Err(failed("computing", vk::Result::ERROR_DEVICE_LOST)) } else { Ok(()) }
    }

    /// Numbers of the last submission and of the last one that was waited for.
    pub(crate) fn numbers(&self) -> [u64; 2] {
        [self.submitted, self.waited]
    }

    /// Drops what was recorded and not submitted.
    pub(crate) fn abandon(&mut self) {
        self.held = None;
        self.later.clear();
        if let Ok(Some(recording)) = self.finish() {
            self.recycle(recording);
        }
    }
}
