//! Buffers in the device's memory, and in memory that host and device share. Made by `backend`, used by every dispatch.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use octet_compute::Error;

use crate::device::Device;
use crate::ranges::Ranges;

/// Small buffers share allocations of this size: drivers allow a few thousand allocations.
const BLOCK_BYTES: u64 = 32 << 20;

/// Allocations above this are compared with the driver's budget first.
const LARGE_BYTES: u64 = 1 << 20;

/// A limit of device memory. Backends that were opened with clones of it share it: the models of one process.
#[derive(Debug, Clone)]
pub struct MemoryLimit {
    bytes_max: u64,
    used_bytes: Arc<AtomicU64>,
}

impl MemoryLimit {
    /// At most `bytes_max` bytes in all.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used_bytes: Arc::default() }
    }

    /// Bytes that all backends together may still allocate.
    fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used_bytes.load(Ordering::Relaxed))
    }

    /// Takes `bytes` bytes, or returns false if they exceed the limit.
    fn take(&self, bytes: u64) -> bool {
        let sum = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }
}

/// Bytes of the device's memory that an allocation takes. They are free again when it is dropped.
struct Claim {
    bytes: u64,
    used_bytes: Arc<AtomicU64>,
    limit: Option<MemoryLimit>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(limit) = &self.limit {
            limit.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// One allocation. Freed when its last buffer is dropped.
struct Allocation {
    device: Arc<Device>,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
    /// Dropped after the memory is freed. `None` for memory of the host.
    _claim: Option<Claim>,
}

// SAFETY: the pointer is to memory that belongs to the allocation. Only the owner of a buffer reads or writes through it.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: every buffer in it holds an `Arc` of it and is destroyed before.
        unsafe { self.device.raw.free_memory(self.memory, None) };
    }
}

/// A buffer for kernels and copies: a range of an allocation.
pub(crate) struct Buffer {
    device: Arc<Device>,
    pub(crate) raw: vk::Buffer,
    pub(crate) bytes: u64,
    place: Placed,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: recordings that use the buffer hold an `Arc` of it, so no running command uses it. `place` is dropped afterwards.
        unsafe { self.device.raw.destroy_buffer(self.raw, None) };
    }
}

/// The memory that a buffer is bound to.
struct Placed {
    allocation: Arc<Allocation>,
    offset: u64,
    /// The range of a block that it takes; `None` if it has an allocation of its own.
    range: Option<(SharedRanges, Range<u64>)>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some((ranges, range)) = self.range.take() {
            lock(&ranges).give_back(range);
        }
    }
}

/// Buffers give their ranges back from any thread.
type SharedRanges = Arc<Mutex<Ranges>>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffer {
    fn host(&self) -> *mut u8 {
        let mapped = self.place.allocation.mapped;
        assert!(!mapped.is_null(), "the buffer is not in memory that the host can access");
        // SAFETY: the buffer lies within the allocation, which is mapped as a whole.
        unsafe { mapped.add(self.place.offset as usize) }
    }

    /// Writes to a buffer in shared memory. The device must not be using this part of it.
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

    /// Writes zeros to a buffer in shared memory. The device must not be using this part of it.
    pub(crate) fn clear(&self, at: u64, bytes: u64) {
        assert!(at + bytes <= self.bytes, "a write beyond the buffer's end");
        // SAFETY: within the mapped range as just checked; the memory is coherent.
        unsafe { std::ptr::write_bytes(self.host().add(at as usize), 0, bytes as usize) };
    }

    /// Copies from a buffer in shared memory to another one, perhaps of another device. Neither device may be using these parts.
    pub(crate) fn copy_to(&self, at: u64, other: &Self, to: u64, bytes: u64) {
        assert!(at + bytes <= self.bytes && to + bytes <= other.bytes, "a copy beyond a buffer's end");
        // SAFETY: within the mapped ranges as just checked; the memory is coherent. They may be parts of one buffer, and may even overlap.
        unsafe {
            std::ptr::copy(self.host().add(at as usize), other.host().add(to as usize), bytes as usize)
        };
    }

    /// Reads from a buffer in shared memory. The device must have finished writing to it.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        assert!(at + out.len() as u64 <= self.bytes, "a read beyond the buffer's end");
        // SAFETY: within the mapped range as just checked; the memory is coherent.
        unsafe { std::ptr::copy_nonoverlapping(self.host().add(at as usize), out.as_mut_ptr(), out.len()) };
    }
}

/// The memory of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The device's own memory.
    Device,
    /// Memory that the host and kernels can read and write.
    Host,
}

/// An allocation that small buffers of one place are cut from.
struct Block {
    allocation: Arc<Allocation>,
    ranges: SharedRanges,
}

impl Block {
    fn new(allocation: Arc<Allocation>) -> Self {
        Self { allocation, ranges: Arc::new(Mutex::new(Ranges::new(BLOCK_BYTES))) }
    }

    /// Memory for a buffer, if there is room.
    fn place(&self, needs: &vk::MemoryRequirements) -> Option<Placed> {
        let (range, offset) = lock(&self.ranges).take(needs.size, needs.alignment)?;
        let range = Some((self.ranges.clone(), range));
        Some(Placed { allocation: self.allocation.clone(), offset, range })
    }

    fn is_unused(&self) -> bool {
        lock(&self.ranges).is_unused()
    }
}

/// Allocates buffers of one device, and counts their bytes.
pub(crate) struct Memory {
    device: Arc<Device>,
    /// Blocks in the device's memory, and in the host's.
    blocks: Mutex<[Vec<Block>; 2]>,
    limit: Option<MemoryLimit>,
    used_bytes: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new(device: Arc<Device>, limit: Option<MemoryLimit>) -> Self {
        Self { device, blocks: Mutex::default(), limit, used_bytes: Arc::default() }
    }

    /// Bytes of the device's memory that are allocated.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the device's memory that may be allocated now: what the driver gives, within the limit.
    pub(crate) fn free_bytes(&self) -> u64 {
        let limit = self.limit.as_ref().map_or(u64::MAX, MemoryLimit::free_bytes);
        self.device.free_bytes().min(limit)
    }

    /// A buffer of `bytes` bytes; its content is undefined.
    pub(crate) fn buffer(&self, bytes: u64, place: Place) -> Result<Arc<Buffer>, Error> {
        // Whole words, and never empty.
        let bytes = bytes.max(16).next_multiple_of(16);
        if bytes > self.device.buffer_bytes_max {
            return Err(Error(format!(
                "a tensor of {bytes} bytes is too large for {}, which binds at most {} bytes at a time",
                self.device.info.name, self.device.buffer_bytes_max
            )));
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let families = self.device.families();
        // With one family, sharing needs no list. Cards store shared buffers as any others.
        let sharing = match families.len() {
            1 => vk::SharingMode::EXCLUSIVE,
            _ => vk::SharingMode::CONCURRENT,
        };
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(usage)
            .sharing_mode(sharing)
            .queue_family_indices(&families);
        let raw_device = &self.device.raw;
        // SAFETY: the device is alive; the buffer is destroyed by `Buffer` or right here.
        unsafe {
            let raw = raw_device
                .create_buffer(&info, None)
                .map_err(|e| Error(format!("a buffer of {bytes} bytes cannot be created: {e}")))?;
            let needs = raw_device.get_buffer_memory_requirements(raw);
            let place = match self.place(&needs, place) {
                Ok(place) => place,
                Err(e) => {
                    raw_device.destroy_buffer(raw, None);
                    return Err(e);
                }
            };
            let buffer = Buffer { device: self.device.clone(), raw, bytes, place };
            raw_device
                .bind_buffer_memory(raw, buffer.place.allocation.memory, buffer.place.offset)
                .map_err(|e| Error(format!("a buffer of {bytes} bytes cannot be bound to memory: {e}")))?;
            Ok(Arc::new(buffer))
        }
    }

    fn place(&self, needs: &vk::MemoryRequirements, place: Place) -> Result<Placed, Error> {
        let mut blocks = lock(&self.blocks);
        let blocks = &mut blocks[usize::from(place == Place::Host)];
        if needs.size > BLOCK_BYTES / 4 {
            // Unused blocks make room.
            blocks.retain(|b| !b.is_unused());
            let allocation = self.allocate(needs.size, needs.memory_type_bits, place)?;
            return Ok(Placed { allocation, offset: 0, range: None });
        }
        if let Some(placed) = blocks.iter().find_map(|b| b.place(needs)) {
            return Ok(placed);
        }
        let block = Block::new(self.allocate(BLOCK_BYTES, needs.memory_type_bits, place)?);
        let placed = block.place(needs).ok_or_else(|| {
            Error(format!("a buffer of {} bytes cannot be aligned to {}", needs.size, needs.alignment))
        })?;
        blocks.push(block);
        Ok(placed)
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
        let short = |why: &str| self.too_little(bytes, why);
        let index = self.memory_type(bits, place).ok_or_else(|| short("no fitting kind of memory"))?;
        let claim = match place {
            Place::Device => Some(self.claim(bytes)?),
            Place::Host => None,
        };
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(index);
        // SAFETY: the device is alive; the memory is freed by `Allocation`.
        let memory = unsafe { self.device.raw.allocate_memory(&info, None) };
        let memory = memory.map_err(|e| short(&e.to_string()))?;
        let mapped = std::ptr::null_mut();
        let mut allocation = Allocation { device: self.device.clone(), memory, mapped, _claim: claim };
        if place == Place::Host {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is host-visible and not mapped yet; it is unmapped when it is freed.
            allocation.mapped = unsafe { self.device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }
                .map_err(|e| Error(format!("memory cannot be mapped: {e}")))?
                .cast();
        }
        Ok(Arc::new(allocation))
    }

    /// Counts `bytes` bytes of the device's memory as used, within the limit and the driver's budget.
    fn claim(&self, bytes: u64) -> Result<Claim, Error> {
        // Some drivers spill to the host's memory instead of failing.
        if bytes > LARGE_BYTES && bytes > self.device.free_bytes() {
            return Err(self.too_little(bytes, "the driver's budget"));
        }
        if self.limit.as_ref().is_some_and(|limit| !limit.take(bytes)) {
            return Err(self.too_little(bytes, "--gpu-memory"));
        }
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Claim { bytes, used_bytes: self.used_bytes.clone(), limit: self.limit.clone() })
    }

    fn too_little(&self, bytes: u64, why: &str) -> Error {
        Error(format!(
            "{} has no room for {} MiB more ({why}); this model uses {} MiB. A smaller context (-c), a smaller \
             quantisation or --device cpu takes less",
            self.device.info.name,
            bytes.div_ceil(1 << 20),
            self.used_bytes() >> 20
        ))
    }
}
