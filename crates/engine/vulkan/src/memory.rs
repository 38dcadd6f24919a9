//! Buffers in the device's memory and in memory that both sides see. Made by `backend`, used by every dispatch.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use octet_compute::Error;

use crate::device::Device;

/// Small buffers share allocations of this size: drivers allow a few thousand allocations.
const BLOCK_BYTES: u64 = 32 << 20;

/// Allocations above this are compared with the driver's budget first.
const LARGE_BYTES: u64 = 1 << 20;

/// One allocation. Freed when its last buffer is dropped.
struct Allocation {
    device: Arc<Device>,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
}

// SAFETY: the pointer is to memory that belongs to the allocation; who reads or writes through it holds the buffer.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: every buffer in it holds an `Arc` of it and is destroyed before.
        unsafe { self.device.raw.free_memory(self.memory, None) };
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

/// The block that small buffers of one place are cut from.
struct Block {
    allocation: Arc<Allocation>,
    used: u64,
}

/// Allocates buffers of one device, and counts their bytes.
pub(crate) struct Memory {
    device: Arc<Device>,
    blocks: Mutex<[Option<Block>; 2]>,
    limit_bytes: Option<u64>,
    used_bytes: Mutex<u64>,
}

impl Memory {
    pub(crate) fn new(device: Arc<Device>, limit_bytes: Option<u64>) -> Self {
        Self { device, blocks: Mutex::new([None, None]), limit_bytes, used_bytes: Mutex::new(0) }
    }

    /// Bytes of the device's memory that were allocated.
    pub(crate) fn used_bytes(&self) -> u64 {
        *self.used_bytes.lock().unwrap_or_else(PoisonError::into_inner)
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
        if needs.size > BLOCK_BYTES / 4 {
            return Ok((self.allocate(needs.size, needs.memory_type_bits, place)?, 0));
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block = &mut blocks[usize::from(place == Place::Host)];
        if let Some(b) = block {
            let at = b.used.next_multiple_of(needs.alignment);
            if at + needs.size <= BLOCK_BYTES {
                b.used = at + needs.size;
                return Ok((b.allocation.clone(), at));
            }
        }
        let allocation = self.allocate(BLOCK_BYTES, needs.memory_type_bits, place)?;
        *block = Some(Block { allocation: allocation.clone(), used: needs.size });
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
        let mut used = self.used_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if place == Place::Device && self.limit_bytes.is_some_and(|limit| *used + bytes > limit) {
            drop(used);
            return Err(short("--gpu-memory".into()));
        }
        // some drivers spill to the host's memory instead of failing
        if place == Place::Device && bytes > LARGE_BYTES && bytes > self.device.free_bytes() {
            drop(used);
            return Err(short("the driver's budget".into()));
        }
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(index);
        // SAFETY: the device is alive; the memory is freed by `Allocation`.
        let memory = match unsafe { self.device.raw.allocate_memory(&info, None) } {
            Ok(memory) => memory,
            Err(e) => {
                drop(used);
                return Err(short(e.to_string()));
            }
        };
        let mut allocation = Allocation { device: self.device.clone(), memory, mapped: std::ptr::null_mut() };
        if place == Place::Device {
            *used += bytes;
        } else {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is host-visible and not mapped yet; it is unmapped when it is freed.
            allocation.mapped = unsafe { self.device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }
                .map_err(|e| Error(format!("memory cannot be mapped: {e}")))?
                .cast();
        }
        Ok(Arc::new(allocation))
    }
}
