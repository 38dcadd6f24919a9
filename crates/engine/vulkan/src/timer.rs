//! Times of the stages of recorded commands on the device: a timestamp after each barrier.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;
use octet_compute::Error;
use octet_compute::batch::Batch;
use octet_compute::inspect::StageTime;

use crate::device::Device;
use crate::faults::failed;
use crate::traffic::Traffic;

/// Timestamps of a recording. Stages beyond are not measured.
const TIMES_MAX: u32 = 4096;

/// Measures what one recorder records, from [`Timer::begin`] on. A recording must have ended before the next begins.
pub(crate) struct Timer {
    device: Arc<Device>,
    pool: vk::QueryPool,
    /// Timestamps that the open or running recording writes.
    written: u32,
    /// Its stages; their times are missing.
    open: Vec<StageTime>,
    /// The stage that is recorded.
    stage: StageTime,
    /// All reads up to its beginning.
    before: Traffic,
    /// Positions and sequences of the step, which its reads depend on.
    positions: u64,
    sequences: u64,
    /// Stages that have ended, in their order.
    pub(crate) ended: Vec<StageTime>,
}

impl Timer {
    /// `None` if the device's queue has no timestamps.
    pub(crate) fn new(device: Arc<Device>) -> Result<Option<Self>, Error> {
        if device.timestamp_bits == 0 {
            return Ok(None);
        }
        let info =
            vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(TIMES_MAX);
        // SAFETY: the device is alive; the pool is destroyed by `drop`.
        let pool =
            unsafe { device.raw.create_query_pool(&info, None) }.map_err(|e| failed("measuring", e))?;
        Ok(Some(Self {
            device,
            pool,
            written: 0,
            open: Vec::new(),
            stage: StageTime::default(),
            before: Traffic::default(),
            positions: 0,
            sequences: 0,
            ended: Vec::new(),
        }))
    }

    /// A step begins, whose reads are counted from zero.
    pub(crate) fn begin_step(&mut self, batch: &Batch) {
        let positions: usize = batch.spans().iter().map(|s| s.past + s.len).sum();
        (self.positions, self.sequences) = (positions as u64, batch.spans().len() as u64);
        self.before = Traffic::default();
    }

    /// A recording begins.
    pub(crate) fn begin(&mut self, commands: vk::CommandBuffer) {
        self.open.clear();
        self.stage = StageTime::default();
        // SAFETY: the command buffer is being recorded, and the pool has these queries.
        unsafe { self.device.raw.cmd_reset_query_pool(commands, self.pool, 0, TIMES_MAX) };
        self.written = 0;
        self.write(commands);
    }

    /// A kernel of the stage.
    pub(crate) fn note(&mut self, kernel: &'static str, groups: u64) {
        if !self.stage.kernels.contains(&kernel) {
            self.stage.kernels.push(kernel);
        }
        self.stage.groups += groups;
    }

    /// A stage ends; up to here the step has these reads.
    pub(crate) fn end_stage(&mut self, commands: vk::CommandBuffer, read: Traffic) {
        if self.written == TIMES_MAX {
            return;
        }
        let mut stage = std::mem::take(&mut self.stage);
        stage.bytes = read.since(&self.before, self.positions, self.sequences);
        self.before = read;
        self.open.push(stage);
        self.write(commands);
    }

    fn write(&mut self, commands: vk::CommandBuffer) {
        let end = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
        // SAFETY: the command buffer is being recorded, and the pool has this query, which was reset.
        unsafe { self.device.raw.cmd_write_timestamp(commands, end, self.pool, self.written) };
        self.written += 1;
    }

    /// Reads the times of the recording, which has run.
    pub(crate) fn collect(&mut self) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        let mut at = vec![0u64; self.written as usize];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the commands that write these queries have ended.
        unsafe { self.device.raw.get_query_pool_results(self.pool, 0, &mut at, flags) }
            .map_err(|e| failed("measuring", e))?;
        let mask = u64::MAX >> (64 - self.device.timestamp_bits.min(64));
        for (mut stage, times) in self.open.drain(..).zip(at.windows(2)) {
            let ticks = times[1].wrapping_sub(times[0]) & mask;
            stage.time = Duration::from_nanos((ticks as f64 * f64::from(self.device.timestamp_ns)) as u64);
            self.ended.push(stage);
        }
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for the end of what it measured.
        unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
    }
}
