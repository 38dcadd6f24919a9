//! Limits the memory of all requests from the first byte of their bodies until their prompts are tokenized. Acquired by `http` while
//! bodies are read; released by the pipeline.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use octet_api::core::{MemoryHandle, RequestMemory};
use octet_api::{ApiError, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The budget is this many bodies of maximum size.
const LONGEST_AT_ONCE: usize = 8;
/// The budget is at most this part of the memory that is free when the server starts: a text takes up to eight times its length until it is
/// tokenized.
const FREE_SHARE: u64 = 10;
/// The first bytes of each request are not counted, so that long requests that fill the budget do not block short ones. The number of
/// connections bounds them.
const UNCOUNTED_BYTES: usize = 256 << 10;
/// Approximate memory of a JSON value, or a key, besides its text: up to 250 bytes while a body is parsed.
const VALUE_BYTES: usize = 192;
/// `Retry-After` if the budget is exhausted.
const RETRY_S: u64 = 2;

/// The budget.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    bytes_max: usize,
    left: Arc<Semaphore>,
}

/// The share of one request, released when dropped.
#[derive(Debug, Default)]
pub struct MemoryPermit {
    /// Bytes of its body and of the stored conversation that it continues.
    pub body_bytes: usize,
    /// Approximate memory that it uses.
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl MemoryPermit {
    /// Returns the memory of this many values of the body, which are freed.
    pub fn release_values(&mut self, values: usize) {
        self.bytes = self.bytes.saturating_sub(values.saturating_mul(VALUE_BYTES)).max(self.body_bytes);
        let counted = self.bytes.saturating_sub(UNCOUNTED_BYTES);
        if let Some(permit) = &mut self.permit {
            drop(permit.split(permit.num_permits().saturating_sub(counted)));
        }
    }
}

/// The permit of a request and of all its copies.
#[derive(Debug)]
struct SharedPermit {
    budget: MemoryBudget,
    permit: Mutex<MemoryPermit>,
}

impl RequestMemory for SharedPermit {
    fn take_values(&self, body: &[u8]) -> Result<(), ApiError> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        self.budget.take_values(&mut permit, body)
    }

    fn borrow_values(&self, body: &[u8]) -> Result<Box<dyn Send>, ApiError> {
        // A permit of its own: other threads may parse copies of the same request.
        let mut permit = MemoryPermit::default();
        self.budget.take_values(&mut permit, body)?;
        Ok(Box::new(permit))
    }
}

/// Bytes with the memory that they take.
struct HeldBytes {
    bytes: Bytes,
    _memory: MemoryHandle,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes: every copy of them holds `memory`.
pub fn holding(bytes: Bytes, memory: &MemoryHandle) -> Bytes {
    Bytes::from_owner(HeldBytes { bytes, _memory: memory.clone() })
}

impl MemoryBudget {
    /// The permit for a request, which its copies share.
    pub fn shared(&self, permit: MemoryPermit) -> MemoryHandle {
        MemoryHandle::new(Arc::new(SharedPermit { budget: self.clone(), permit: Mutex::new(permit) }))
    }

    /// A budget of eight bodies of maximum size; less if only `free` bytes of memory are left.
    pub fn new(body_bytes_max: usize, free: Option<u64>) -> Self {
        let share = free.map_or(usize::MAX, |free| usize::try_from(free / FREE_SHARE).unwrap_or(usize::MAX));
        let bytes_max = body_bytes_max.saturating_mul(LONGEST_AT_ONCE).min(share).min(Semaphore::MAX_PERMITS);
        // A short request is always possible.
        let bytes_max = bytes_max.max(UNCOUNTED_BYTES);
        Self { bytes_max, left: Arc::new(Semaphore::new(bytes_max)) }
    }

    /// The longest body that fits into it, at most `wanted` bytes.
    pub fn longest_body(&self, wanted: usize) -> usize {
        wanted.min(self.bytes_max)
    }

    /// Acquires memory for a body that has `bytes` so far.
    pub fn take_body(&self, share: &mut MemoryPermit, bytes: usize) -> Result<(), ApiError> {
        share.body_bytes = bytes;
        self.acquire_up_to(share, bytes)
    }

    /// Acquires memory for the parsed form of a body: many small values need many times their text.
    pub fn take_values(&self, share: &mut MemoryPermit, body: &[u8]) -> Result<(), ApiError> {
        let values = values(body);
        let bytes = body.len().saturating_add(values.saturating_mul(VALUE_BYTES));
        if bytes.saturating_sub(UNCOUNTED_BYTES) > self.bytes_max {
            let what = format!(
                "the body has {values} keys and values in {} bytes, which take about {bytes} bytes in memory; the server has \
                 {} for requests (eight times its --max-body, or a tenth of the memory that was free at the start)",
                body.len(),
                self.bytes_max
            );
            return Err(ApiError::new(ErrorKind::TooLarge, what));
        }
        self.acquire_up_to(share, bytes)
    }

    /// Acquires memory for stored responses that precede a body.
    pub fn take_kept(&self, share: &mut MemoryPermit, bytes: usize) -> Result<(), ApiError> {
        let all = share.bytes.saturating_add(bytes);
        if all.saturating_sub(UNCOUNTED_BYTES) > self.bytes_max {
            let what = format!(
                "the stored responses that the request refers to take about {bytes} bytes in memory, {all} with the request; the \
                 server has {} for requests, eight times its --max-body of {} bytes: send only the items that are needed, or start \
                 the server with a larger --max-body",
                self.bytes_max,
                self.bytes_max / LONGEST_AT_ONCE,
            );
            return Err(ApiError::new(ErrorKind::TooLarge, what));
        }
        share.body_bytes += bytes;
        self.acquire_up_to(share, share.bytes + bytes)
    }

    fn acquire_up_to(&self, share: &mut MemoryPermit, bytes: usize) -> Result<(), ApiError> {
        let counted = share.bytes.saturating_sub(UNCOUNTED_BYTES);
        let more = bytes.saturating_sub(UNCOUNTED_BYTES).saturating_sub(counted);
        if more == 0 {
            share.bytes = share.bytes.max(bytes);
            return Ok(());
        }
        let permits = u32::try_from(more).ok();
        let taken = permits.and_then(|n| Arc::clone(&self.left).try_acquire_many_owned(n).ok());
        let Some(taken) = taken else {
            let what =
                format!("the memory for long requests ({} bytes) is in use; try again", self.bytes_max);
            let error = ApiError::new(ErrorKind::Overloaded, what);
            return Err(ApiError { retry_after_s: Some(RETRY_S), ..error });
        };
        share.bytes = bytes;
        match &mut share.permit {
            Some(permit) => permit.merge(taken),
            None => share.permit = Some(taken),
        }
        Ok(())
    }
}

/// The number of keys and values in a JSON body, or slightly more: each but the first follows one of these characters outside strings.
pub fn values(body: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in body {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
        } else if byte == b'"' {
            in_string = true;
        } else {
            values += usize::from(matches!(byte, b',' | b':' | b'[' | b'{'));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_free_memory() {
        let of = |free| MemoryBudget::new(32 << 20, free);
        assert_eq!(of(None).bytes_max, 256 << 20);
        assert_eq!(of(Some(64 << 30)).bytes_max, 256 << 20);
        let small = of(Some(200 << 20));
        assert_eq!((small.bytes_max, small.longest_body(32 << 20)), (20 << 20, 20 << 20));
        assert_eq!(of(Some(0)).longest_body(32 << 20), UNCOUNTED_BYTES);
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (body, n) in [
            ("1", 1),
            (r#""a, [b], {\"c\": 1}\\""#, 1),
            ("[1, 2, 3]", 4),
            (r#"{"a": [true, "x,y\\"], "b": {}}"#, 8),
            (r#"["\"", ","]"#, 3),
        ] {
            assert_eq!(values(body.as_bytes()), n, "{body}");
        }
    }

    #[test]
    fn small_values_take_more_than_their_bytes() {
        let room = MemoryBudget::new(1 << 20, None);
        let many = |n: usize| format!("[{}1]", "1,".repeat(n));
        let mut share = MemoryPermit::default();
        room.take_values(&mut share, many(20_000).as_bytes()).unwrap();
        assert_eq!(room.left.available_permits(), room.bytes_max + UNCOUNTED_BYTES - share.bytes);
        assert!(share.bytes > 3 << 20);
        // what comes again is not counted twice
        let before = share.bytes;
        room.take_values(&mut share, many(10_000).as_bytes()).unwrap();
        assert_eq!(share.bytes, before);
        room.take_kept(&mut share, 1000).unwrap();
        assert_eq!((share.bytes, share.body_bytes), (before + 1000, 1000));
        let never = room.take_kept(&mut share, 9 << 20).unwrap_err();
        assert_eq!((never.kind, share.body_bytes), (ErrorKind::TooLarge, 1000), "{never}");
        let full = room.take_values(&mut MemoryPermit::default(), many(30_000).as_bytes()).unwrap_err();
        assert_eq!((full.kind, full.retry_after_s), (ErrorKind::Overloaded, Some(RETRY_S)));
        share.release_values(1000);
        assert_eq!(share.bytes, before + 1000 - 1000 * VALUE_BYTES);
        assert_eq!(room.left.available_permits(), room.bytes_max + UNCOUNTED_BYTES - share.bytes);
        share.release_values(usize::MAX);
        assert_eq!((share.bytes, room.left.available_permits()), (1000, room.bytes_max));
        drop(share);
        assert_eq!(room.left.available_permits(), room.bytes_max);
        let never = room.take_values(&mut MemoryPermit::default(), many(60_000).as_bytes()).unwrap_err();
        assert!(
            never.kind == ErrorKind::TooLarge && never.message.contains("60002 keys and values"),
            "{never}"
        );
    }

    #[test]
    fn copies_of_a_request_and_of_its_body_hold_its_memory() {
        let room = MemoryBudget::new(1 << 20, None);
        let mut share = MemoryPermit::default();
        room.take_body(&mut share, 1 << 20).unwrap();
        let memory = room.shared(share);
        let body = holding(Bytes::from_static(b"[1,1]"), &memory);
        let (copy, slice) = (memory.clone(), body.slice(1..2));
        drop((memory, body));
        assert_eq!(&slice[..], b"1");
        copy.take_values(format!("[{}1]", "1,".repeat(20_000)).as_bytes()).unwrap();
        let held = room.left.available_permits();
        assert!(held < room.bytes_max - (3 << 20));
        let borrowed = copy.borrow_values(format!("[{}1]", "1,".repeat(10_000)).as_bytes()).unwrap();
        assert!(room.left.available_permits() < held - (1 << 20));
        drop(borrowed);
        assert_eq!(room.left.available_permits(), held);
        drop(copy);
        assert!(room.left.available_permits() < room.bytes_max);
        drop(slice);
        assert_eq!(room.left.available_permits(), room.bytes_max);
    }
}
