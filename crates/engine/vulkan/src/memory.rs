//! Buffers in the device's memory and in memory that both sides see. Made by `backend`, used by every dispatch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use octet_compute::Error;

use crate::device::Device;

/// Small buffers share allocations of this size: drivers allow a few thousand allocations.
const BLOCK_BYTES: u64 = 32 << 20;

/// A block with less room than this is full.
const LEFT_BYTES_MIN: u64 = 64 << 10;

/// Allocations above this are compared with the driver's budget first.
const LARGE_BYTES: u64 = 1 << 20;

/// One allocation. Freed when its last buffer is dropped.
struct Allocation {
    device: Arc<Device>,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
    /// Bytes of the device's memory, which are subtracted from `used_bytes` at the end.
    bytes: u64,
    used_bytes: Arc<AtomicU64>,
}

// SAFETY: the pointer is to memory that belongs to the allocation; who reads or writes through it holds the buffer.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: every buffer in it holds an `Arc` of it and is destroyed before.
        unsafe { self.device.raw.free_memory(self.memory, None) };
        self.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A range of an allocation as a buffer that kernels and copies can use.
pub(crate) struct Buffer {
    device: Arc<Device>,
    pub(crate) raw: vk::Buffer,
    pub(crate) bytes: u64,
    allocation: Arc<Allocation>,
    offset: u64,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: recordings that use the buffer hold an `Arc` of it, so nothing that runs uses it.
        unsafe { self.device.raw.destroy_buffer(self.raw, None) };
    }
}

impl Buffer {
    fn host(&self) -> *mut u8 {
        assert!(!self.allocation.mapped.is_null(), "the host does not see this buffer");
        // SAFETY: the buffer lies within the allocation, which is mapped as a whole.
        unsafe { self.allocation.mapped.add(self.offset as usize) }
    }

    /// Writes to a buffer that the host sees. The device must not be using this part of it.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.bytes, "a write beyond the buffer's end");
        // SAFETY: within the mapped range as just checked; the memory is coherent.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host().add(at as usize), bytes.len()) };
    }

    /// Like `write`, for whole words.
    pub(crate) fn write_words(&self, at: u64, words: &[u32]) {
        // SAFETY: words without padding are bytes.
        self.write(at, unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 4 * words.len()) });
    }

    /// Reads from a buffer that the host sees. The device must have finished writing to it.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        assert!(at + out.len() as u64 <= self.bytes, "a read beyond the buffer's end");
        // SAFETY: within the mapped range as just checked; the memory is coherent.
        unsafe { std::ptr::copy_nonoverlapping(self.host().add(at as usize), out.as_mut_ptr(), out.len()) };
    }
}

/// Where a buffer lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The device's own memory.
    Device,
    /// Memory that the host writes and reads, and kernels too.
    Host,
}

/// An allocation that small buffers of one place are cut from.
struct Block {
    allocation: Arc<Allocation>,
    used: u64,
}

impl Block {
    /// Where a buffer starts that fits in.
    fn place(&self, needs: &vk::MemoryRequirements) -> Option<u64> {
        let at = self.used.next_multiple_of(needs.alignment);
        (at + needs.size <= BLOCK_BYTES).then_some(at)
    }

    /// Whether all its buffers are gone.
    fn is_unused(&mut self) -> bool {
        Arc::get_mut(&mut self.allocation).is_some()
    }
}

/// Allocates buffers of one device, and counts their bytes.
pub(crate) struct Memory {
    device: Arc<Device>,
    /// Blocks with room: in the device's memory, and in the host's.
    blocks: Mutex<[Vec<Block>; 2]>,
    limit_bytes: Option<u64>,
    used_bytes: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new(device: Arc<Device>, limit_bytes: Option<u64>) -> Self {
        Self { device, blocks: Mutex::default(), limit_bytes, used_bytes: Arc::default() }
    }

    /// Bytes of the device's memory that are allocated.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the device's memory that may be allocated now: what the driver gives, within the limit.
    pub(crate) fn free_bytes(&self) -> u64 {
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        self.device.free_bytes().min(limit.saturating_sub(self.used_bytes()))
    }

    /// A buffer of `bytes` bytes; its content is undefined.
    pub(crate) fn buffer(&self, bytes: u64, place: Place) -> Result<Arc<Buffer>, Error> {
        // whole words, and never empty
        let bytes = bytes.max(16).next_multiple_of(16);
        if bytes > self.device.buffer_bytes_max {
            return Err(Error(format!(
                "a tensor takes {bytes} bytes, and {} addresses at most {} at a time",
                self.device.info.name, self.device.buffer_bytes_max
            )));
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info =
            vk::BufferCreateInfo::default().size(bytes).usage(usage).sharing_mode(vk::SharingMode::EXCLUSIVE);
        let raw_device = &self.device.raw;
        // SAFETY: the device is alive; the buffer is destroyed by `Buffer` or right here.
        unsafe {
            let raw = raw_device
                .create_buffer(&info, None)
                .map_err(|e| Error(format!("a buffer of {bytes} bytes cannot be made: {e}")))?;
            let needs = raw_device.get_buffer_memory_requirements(raw);
            let (allocation, offset) = match self.place(&needs, place) {
                Ok(found) => found,
                Err(e) => {
                    raw_device.destroy_buffer(raw, None);
                    return Err(e);
                }
            };
            let buffer = Buffer { device: self.device.clone(), raw, bytes, allocation, offset };
            raw_device
                .bind_buffer_memory(raw, buffer.allocation.memory, offset)
                .map_err(|e| Error(format!("a buffer of {bytes} bytes finds no memory: {e}")))?;
            Ok(Arc::new(buffer))
        }
    }

    fn place(&self, needs: &vk::MemoryRequirements, place: Place) -> Result<(Arc<Allocation>, u64), Error> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = &mut blocks[usize::from(place == Place::Host)];
        if needs.size > BLOCK_BYTES / 4 {
            // What no buffer uses makes room.
            blocks.retain_mut(|b| !b.is_unused());
            return Ok((self.allocate(needs.size, needs.memory_type_bits, place)?, 0));
        }
        for block in blocks.iter_mut().filter_map(|b| b.is_unused().then_some(b)) {
            block.used = 0;
        }
        let found = blocks.iter().enumerate().find_map(|(i, b)| Some((i, b.place(needs)?)));
        if let Some((i, at)) = found {
            let block = &mut blocks[i];
            block.used = at + needs.size;
            let allocation = block.allocation.clone();
            if BLOCK_BYTES - block.used < LEFT_BYTES_MIN {
                blocks.swap_remove(i);
            }
            return Ok((allocation, at));
        }
        let allocation = self.allocate(BLOCK_BYTES, needs.memory_type_bits, place)?;
        blocks.push(Block { allocation: allocation.clone(), used: needs.size });
        Ok((allocation, 0))
    }

    /// Of the memory types that fit, the one with the largest heap: some cards offer a small window of their memory to the host.
    fn memory_type(&self, bits: u32, place: Place) -> Option<u32> {
        let m = &self.device.memory;
        let wanted = match place {
            Place::Device => vk::MemoryPropertyFlags::DEVICE_LOCAL,
            Place::Host => vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT,
        };
        let types = m.memory_types_as_slice().iter().enumerate();
        types
            .filter(|(i, t)| bits >> i & 1 == 1 && t.property_flags.contains(wanted))
            .max_by_key(|(i, t)| {
                let cached = t.property_flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
                let size = m.memory_heaps[t.heap_index as usize].size;
                (place == Place::Host && cached, size, std::cmp::Reverse(*i))
            })
            .map(|(i, _)| i as u32)
    }

    fn allocate(&self, bytes: u64, bits: u32, place: Place) -> Result<Arc<Allocation>, Error> {
        let short = |why: String| {
            Error(format!(
                "{} has no room for {} MiB more ({why}); {} MiB are in use. A smaller context (-c), a smaller \
                 quantisation or --device cpu takes less",
                self.device.info.name,
                bytes.div_ceil(1 << 20),
                self.used_bytes() >> 20
            ))
        };
        let index = self.memory_type(bits, place).ok_or_else(|| short("no fitting kind of memory".into()))?;
        if place == Place::Device && self.limit_bytes.is_some_and(|limit| self.used_bytes() + bytes > limit) {
            return Err(short("--gpu-memory".into()));
        }
        // some drivers spill to the host's memory instead of failing
        if place == Place::Device && bytes > LARGE_BYTES && bytes > self.device.free_bytes() {
            return Err(short("the driver's budget".into()));
        }
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(index);
        // SAFETY: the device is alive; the memory is freed by `Allocation`.
        let memory = unsafe { self.device.raw.allocate_memory(&info, None) };
        let memory = memory.map_err(|e| short(e.to_string()))?;
        let counted = if place == Place::Device { bytes } else { 0 };
        self.used_bytes.fetch_add(counted, Ordering::Relaxed);
        let mut allocation = Allocation {
            device: self.device.clone(),
            memory,
            mapped: std::ptr::null_mut(),
            bytes: counted,
            used_bytes: self.used_bytes.clone(),
        };
        if place == Place::Host {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is host-visible and not mapped yet; it is unmapped when it is freed.
            allocation.mapped = unsafe { self.device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }
                .map_err(|e| Error(format!("memory cannot be mapped: {e}")))?
                .cast();
        }
        Ok(Arc::new(allocation))
    }
}
