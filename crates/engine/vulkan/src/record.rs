//! Command buffers: dispatches in stages with one barrier between them, copies, submission, and recordings that are run again. Called
//! by `backend` and the verbs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use octet_compute::Error;

use crate::device::Device;
use crate::faults::Faults;
use crate::kernel::{BUFFERS_MAX, Kernel};
use crate::memory::Buffer;
use crate::pipeline::{PUSH_BYTES, Pipelines};

/// Descriptor sets of a pool; each dispatch takes one.
const SETS_PER_POOL: u32 = 256;
/// Seconds that a submission may take. They are counted one by one, so that a process that is stopped for a while does not take its device for lost.
const TIME_MAX_S: u32 = 60;
const SECOND_NS: u64 = 1_000_000_000;

/// Commands of a step, ready to run as often as one likes. Holds what they use.
pub(crate) struct Recording {
    commands: vk::CommandBuffer,
    /// Where its descriptor sets come from; the last one has room.
    pools: Vec<vk::DescriptorPool>,
    /// Sets that the last pool has given out.
    sets: u32,
    /// Kept alive for as long as the commands may run.
    buffers: Vec<Arc<Buffer>>,
    /// Barriers in it.
    pub(crate) barriers: u32,
    /// Kernels that it starts.
    pub(crate) dispatches: u32,
    is_empty: bool,
    /// Something was recorded since the last barrier.
    is_dirty: bool,
}

/// A kernel to start: its constants, its buffers in the order of its bindings, its push constants, and its workgroups.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub(crate) kernel: Kernel,
    pub(crate) constants: [u32; 3],
    pub(crate) buffers: Vec<Arc<Buffer>>,
    pub(crate) push: Vec<u32>,
    pub(crate) groups: [u32; 3],
}

/// Records and runs commands on a device's queue, one submission at a time.
pub(crate) struct Recorder {
    device: Arc<Device>,
    pool: vk::CommandPool,
    fence: vk::Fence,
    pub(crate) pipelines: Pipelines,
    /// Command buffers and pools of descriptor sets that no recording uses.
    free: Vec<vk::CommandBuffer>,
    free_pools: Vec<vk::DescriptorPool>,
    /// Pools that were made.
    all_pools: Vec<vk::DescriptorPool>,
    open: Option<Recording>,
    /// The last kernel, until it is known what follows: a kernel with a tail may take its place.
    held: Option<Dispatch>,
    /// Kernels that nothing of the next stage depends on, and that run beside it.
    later: Vec<Dispatch>,
    /// Recordings that may still run on a device that did not come back: what they use is kept until the device has stopped.
    stuck: Vec<Recording>,
    /// Submits after each stage.
    pub(crate) by_stage: bool,
    /// What submissions took since this was last set to zero.
    pub(crate) spent: Duration,
    /// Leaves out the barrier of this number: for the test that validation notices.
    pub(crate) skip_barrier: Option<u32>,
    /// Submits nothing: for the test that validation notices.
    pub(crate) is_dry: bool,
    /// Starts the kernel of this name with one workgroup too few, as a wrong driver might: for tests.
    pub(crate) break_kernel: Option<String>,
    /// A submission came back with a lost device, or not at all.
    pub(crate) is_lost: bool,
    /// Submissions until one reports a lost device: for tests.
    pub(crate) lose_after: Option<u32>,
    /// Faults of submissions: for tests.
    pub(crate) faults: Option<Arc<Faults>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: after the wait nothing runs; pool and fence belong to this recorder. A lost device is destroyed all the same.
        unsafe {
            let _ = self.device.raw.device_wait_idle();
            self.device.raw.destroy_command_pool(self.pool, None);
            self.all_pools.iter().for_each(|p| self.device.raw.destroy_descriptor_pool(*p, None));
            self.device.raw.destroy_fence(self.fence, None);
        }
    }
}

fn failed(what: &str, e: vk::Result) -> Error {
    Error(match e {
        vk::Result::ERROR_DEVICE_LOST => {
            format!("the graphics device was lost while {what}: its driver reset it, or it was removed")
        }
        vk::Result::TIMEOUT => format!("the graphics device took over a minute while {what}"),
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => format!(
            "the graphics device ran out of memory while {what}: close other programs that use it, or leave it more room with a smaller \
             --gpu-memory or --ctx-size"
        ),
        e => format!("the graphics device failed while {what}: {e}"),
    })
}

impl Recorder {
    pub(crate) fn new(device: Arc<Device>) -> Result<Self, Error> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device is alive; what is made is destroyed by `drop`.
        let (pool, fence) = unsafe {
            let pool = device.raw.create_command_pool(&info, None).map_err(|e| failed("starting", e))?;
            (pool, device.raw.create_fence(&vk::FenceCreateInfo::default(), None))
        };
        let pipelines = Pipelines::new(device.clone());
        let fence = fence.map_err(|e| {
            // SAFETY: the pool is not used yet.
            unsafe { device.raw.destroy_command_pool(pool, None) };
            failed("starting", e)
        })?;
        Ok(Self {
            device,
            pool,
            fence,
            pipelines,
            free: Vec::new(),
            free_pools: Vec::new(),
            all_pools: Vec::new(),
            open: None,
            held: None,
            later: Vec::new(),
            stuck: Vec::new(),
            by_stage: false,
            spent: Duration::ZERO,
            skip_barrier: None,
            is_dry: false,
            break_kernel: None,
            is_lost: false,
            lose_after: None,
            faults: None,
        })
    }

    /// The recording that commands go to, begun if there is none.
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
            // What the host and earlier submissions wrote is seen by what follows.
            self.barrier_now(vk::AccessFlags::HOST_WRITE);
        }
        Ok(self.open.as_mut().expect("just opened"))
    }

    fn barrier_now(&mut self, more: vk::AccessFlags) {
        let Some(open) = &mut self.open else { return };
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        let access = vk::AccessFlags::SHADER_READ
            | vk::AccessFlags::SHADER_WRITE
            | vk::AccessFlags::TRANSFER_READ
            | vk::AccessFlags::TRANSFER_WRITE;
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

    /// Ends a stage: what follows sees what came before. Two in a row are one.
    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        self.barrier_beside()?;
        self.end_stage();
        if self.by_stage { self.flush() } else { Ok(()) }
    }

    /// Ends a stage, as `barrier`; kernels that were put off for later run in the next one, beside what follows.
    pub(crate) fn barrier_beside(&mut self) -> Result<(), Error> {
        self.start_held()?;
        self.end_stage();
        std::mem::take(&mut self.later).iter().try_for_each(|d| self.start(d))
    }

    /// Starts `kernel` when it is known what follows: unless [`Recorder::take_held`] comes before anything else.
    pub(crate) fn hold(&mut self, kernel: Dispatch) -> Result<(), Error> {
        self.start_held()?;
        self.held = Some(kernel);
        Ok(())
    }

    /// The kernel that waits to be started, if `is_wanted`. The caller starts it or one that does the same and more.
    pub(crate) fn take_held(&mut self, is_wanted: impl FnOnce(&Dispatch) -> bool) -> Option<Dispatch> {
        self.held.take_if(|d| is_wanted(d))
    }

    /// Starts `kernel` in the next stage.
    pub(crate) fn put_off(&mut self, kernel: Dispatch) {
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
    }

    /// A descriptor set of the open recording.
    fn set(&mut self, layout: vk::DescriptorSetLayout) -> Result<vk::DescriptorSet, Error> {
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
        let pool = *open.pools.last().expect("one has room");
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: pool and layout are alive.
        let sets = unsafe { d.allocate_descriptor_sets(&info) }.map_err(|e| failed("recording", e))?;
        Ok(sets[0])
    }

    /// Runs `kernel` with `groups` workgroups over `buffers`, in the order of its bindings.
    pub(crate) fn dispatch(
        &mut self,
        kernel: Kernel,
        constants: [u32; 3],
        buffers: &[&Arc<Buffer>],
        push: &[u32],
        groups: [u32; 3],
    ) -> Result<(), Error> {
        let buffers = buffers.iter().map(|b| (*b).clone()).collect();
        self.start(&Dispatch { kernel, constants, buffers, push: push.to_vec(), groups })
    }

    /// The same for one that was made before.
    pub(crate) fn start(&mut self, what: &Dispatch) -> Result<(), Error> {
        self.start_held()?;
        let Dispatch { kernel, constants, buffers, push, groups } = what;
        let (kernel, constants) = (*kernel, *constants);
        assert!(buffers.len() == kernel.buffers() && 4 * push.len() <= PUSH_BYTES, "{}", kernel.name());
        let mut groups = *groups;
        if self.break_kernel.as_deref() == Some(kernel.name()) {
            groups[0] = groups[0].saturating_sub(1);
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let pipeline = self.pipelines.get((kernel, constants))?;
        let set = self.set(pipeline.set_layout)?;
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
        let mut bytes = [0u8; PUSH_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(push) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let open = self.open()?;
        let commands = open.commands;
        open.buffers.extend(buffers.iter().cloned());
        open.dispatches += 1;
        (open.is_empty, open.is_dirty) = (false, true);
        let d = &self.device;
        // SAFETY: the command buffer is being recorded; pipeline, layout and buffers are alive, and stay so for as long as the
        // recording does.
        unsafe {
            d.raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
            d.raw.update_descriptor_sets(&writes[..buffers.len()], &[]);
            let sets = [set];
            d.raw.cmd_bind_descriptor_sets(
                commands,
                vk::PipelineBindPoint::COMPUTE,
                pipeline.layout,
                0,
                &sets,
                &[],
            );
            d.raw.cmd_push_constants(
                commands,
                pipeline.layout,
                vk::ShaderStageFlags::COMPUTE,
                0,
                &bytes[..4 * push.len().max(1)],
            );
            d.raw.cmd_dispatch(commands, groups[0], groups[1], groups[2]);
        }
        Ok(())
    }

    /// Copies `bytes` bytes; the ranges do not overlap.
    pub(crate) fn copy(
        &mut self,
        from: (&Arc<Buffer>, u64),
        to: (&Arc<Buffer>, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        assert!(from.1 + bytes <= from.0.bytes && to.1 + bytes <= to.0.bytes, "a copy beyond a buffer's end");
        if bytes == 0 {
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
        if bytes == 0 {
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

    /// Ends the open recording, if anything was recorded.
    pub(crate) fn finish(&mut self) -> Result<Option<Recording>, Error> {
        self.start_held()?;
        if !self.later.is_empty() {
            self.barrier_beside()?;
        }
        let Some(recording) = self.open.take() else { return Ok(None) };
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        // SAFETY: the command buffer is being recorded, and ended here.
        let ended = unsafe {
            self.device.raw.cmd_pipeline_barrier(
                recording.commands,
                stages,
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

    /// Runs a recording to its end.
    pub(crate) fn run(&mut self, recording: &Recording) -> Result<(), Error> {
        if let Some(left) = &mut self.lose_after {
            if *left == 0 {
                self.is_lost = true;
                return Err(failed("computing", vk::Result::ERROR_DEVICE_LOST));
            }
            *left -= 1;
        }
        if let Some(fault) = self.faults.as_ref().and_then(|f| f.take()) {
            self.is_lost |= fault == vk::Result::ERROR_DEVICE_LOST;
            return Err(failed("computing", fault));
        }
        if self.is_dry {
            return Ok(());
        }
        let d = &self.device.raw;
        let commands = [recording.commands];
        let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
        let fence = [self.fence];
        let start = Instant::now();
        // SAFETY: the commands were ended; nothing runs, because every run waits for its end.
        let done = unsafe {
            d.reset_fences(&fence)
                .and_then(|()| d.queue_submit(self.device.queue, &submit, self.fence))
                .and_then(|()| {
                    let mut done = Err(vk::Result::TIMEOUT);
                    for _ in 0..TIME_MAX_S {
                        done = d.wait_for_fences(&fence, true, SECOND_NS);
                        if done != Err(vk::Result::TIMEOUT) {
                            break;
                        }
                    }
                    done
                })
        };
        self.spent += start.elapsed();
        self.is_lost |= matches!(done, Err(vk::Result::ERROR_DEVICE_LOST | vk::Result::TIMEOUT));
        done.map_err(|e| failed("computing", e))
    }

    /// Gives a recording's command buffer back.
    pub(crate) fn recycle(&mut self, recording: Recording) {
        if self.is_lost {
            self.stuck.push(recording);
            return;
        }
        for pool in recording.pools {
            // SAFETY: every run waits for its end, and one that did not see it marks the device as lost: the recording does not run
            // any more, so none of the pool's sets is in use.
            let reset =
                unsafe { self.device.raw.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()) };
            if reset.is_ok() {
                self.free_pools.push(pool);
            }
        }
        self.free.push(recording.commands);
    }

    /// Runs all that was recorded, and forgets it.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if let Some(recording) = self.finish()? {
            let done = self.run(&recording);
            self.recycle(recording);
            done?;
        }
        Ok(())
    }

    /// Forgets what was recorded and not run.
    pub(crate) fn abandon(&mut self) {
        self.held = None;
        self.later.clear();
        if let Ok(Some(recording)) = self.finish() {
            self.recycle(recording);
        }
    }
}
