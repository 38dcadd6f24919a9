//! Moving bytes between the host and the device, through one staging buffer. Called by `backend`.

use std::sync::Arc;

use octet_compute::Error;

use crate::backend::Vulkan;
use crate::memory::{Buffer, Place};

/// Bytes that are moved at once.
pub(crate) const STAGING_BYTES: u64 = 16 << 20;

impl Vulkan {
    /// Copies bytes into a buffer on the device.
    pub(crate) fn upload(&mut self, to: &Arc<Buffer>, at: u64, data: &[u8]) -> Result<(), Error> {
        self.recorder.flush()?;
        let staging = self.staging.clone();
        for (i, part) in data.chunks(STAGING_BYTES as usize).enumerate() {
            staging.write(0, part);
            self.recorder.copy((&staging, 0), (to, at + i as u64 * STAGING_BYTES), part.len() as u64)?;
            self.recorder.flush()?;
        }
        Ok(())
    }

    /// Copies bytes from a buffer on the device, after all that was recorded.
    pub(crate) fn download(&mut self, from: &Arc<Buffer>, at: u64, out: &mut [u8]) -> Result<(), Error> {
        if self.in_step {
            self.is_split = true;
        }
        self.recorder.barrier()?;
        let staging = self.staging.clone();
        for (i, part) in out.chunks_mut(STAGING_BYTES as usize).enumerate() {
            self.recorder.copy((from, at + i as u64 * STAGING_BYTES), (&staging, 0), part.len() as u64)?;
            self.recorder.flush()?;
            staging.read(0, part);
        }
        Ok(())
    }

    pub(crate) fn words(&mut self, words: &[u32]) -> Result<Arc<Buffer>, Error> {
        if words.is_empty() {
            return Ok(self.dummy.clone());
        }
        let buffer = self.memory.buffer(4 * words.len() as u64, Place::Device)?;
        self.recorder.flush()?;
        let staging = self.staging.clone();
        let each = STAGING_BYTES as usize / 4;
        for (i, part) in words.chunks(each).enumerate() {
            staging.write_words(0, part);
            self.recorder.copy((&staging, 0), (&buffer, (4 * i * each) as u64), 4 * part.len() as u64)?;
            self.recorder.flush()?;
        }
        Ok(buffer)
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> Result<Arc<Buffer>, Error> {
        let words: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
        self.words(&words)
    }

    pub(crate) fn zeroed(&mut self, bytes: u64) -> Result<Arc<Buffer>, Error> {
        let buffer = self.memory.buffer(bytes, Place::Device)?;
        self.recorder.clear(&buffer, 0, buffer.bytes)?;
        self.recorder.flush()?;
        Ok(buffer)
    }
}
