//! The thread that checks a mapped file to its end while steps already use it, and gives it huge pages. Used by `packed_file`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use super::InFile;
use crate::cpu::map::{FileMap, HUGE_BYTES};
use crate::cpu::pack::Checks;

/// Read ahead, or copied, at once.
const CHUNK: usize = 32 * HUGE_BYTES;
/// With a smaller share of huge pages, steps are measurably slower.
const HUGE_SHARE: f64 = 0.9;

/// Lets other threads of this process compute first.
pub(super) fn yield_to_others() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10); // a hint
}

/// Checks all matrices in the order of the file. If the system has mapped it in small pages, copies it to huge ones then.
pub(super) fn run(map: &FileMap, mut all: Vec<Arc<InFile>>, stop: &AtomicBool) {
    all.sort_by_key(|f| f.region.at);
    let mut ahead = 0;
    for file in &all {
        for matrix in 0..file.region.count {
            let end = file.region.at + (matrix + 1) * file.region.matrix_bytes();
            while ahead < end {
                if stop.load(Acquire) {
                    return;
                }
                map.read_ahead(ahead..(ahead + CHUNK).min(map.len()));
                ahead += CHUNK;
            }
            file.check(matrix);
        }
    }
    if map.huge_share().is_some_and(|share| share >= HUGE_SHARE) {
        return;
    }
    let whole = map.len() / HUGE_BYTES * HUGE_BYTES;
    for at in (0..whole).step_by(CHUNK) {
        // Without memory for a copy, the rest stays as it is.
        if stop.load(Acquire) || map.is_lost() || map.copy(at..(at + CHUNK).min(whole)).is_err() {
            return;
        }
    }
}
