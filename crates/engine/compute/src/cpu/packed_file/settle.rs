//! The thread that checks a mapped file to its end while steps already use it, and gives it huge pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use super::InFile;
use super::pace::{COPY_REST, Pace};
use super::table::{self, Table};
use crate::cpu::map::{FileMap, HUGE_BYTES};

/// Read ahead, or copied, at once.
const CHUNK: usize = 32 * HUGE_BYTES;
/// With a smaller share of huge pages, steps are measurably slower.
const HUGE_SHARE: f64 = 0.9;

/// Copies embedding tables; checks all matrices in the order of the file. If the system has mapped it in small pages, copies it to huge
/// ones then.
pub(super) fn run(
    map: &FileMap,
    mut all: Vec<Arc<InFile>>,
    tables: &[Arc<Table>],
    pace: &mut Pace,
    stop: &AtomicBool,
) {
    if !pace.after_first(stop) || !table::settle(tables, pace, stop) {
        return;
    }
    all.sort_by_key(|f| f.region.at);
    let mut ahead = 0;
    for file in &all {
        for matrix in 0..file.region.count {
            let end = file.region.at + (matrix + 1) * file.region.matrix_bytes();
            while ahead < end {
                let chunk = ahead..(ahead + CHUNK).min(map.len());
                // What is not in memory is read as fast as the drive can: steps would wait for it.
                if stop.load(Acquire) || map.is_cached(chunk.clone()) && !pace.turn(stop) {
                    return;
                }
                map.read_ahead(chunk);
                ahead += CHUNK;
            }
            if !file.check_if(matrix, &mut || pace.turn(stop)) {
                return;
            }
        }
    }
    if map.huge_share().is_some_and(|share| share >= HUGE_SHARE) {
        return;
    }
    pace.rest = COPY_REST;
    let whole = map.len() / HUGE_BYTES * HUGE_BYTES;
    for at in (0..whole).step_by(CHUNK) {
        let chunk = at..(at + CHUNK).min(whole);
        // Without memory for a copy, the rest stays as it is.
        if map.is_lost() || map.copy(chunk, &mut || pace.turn(stop)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use octet_weights::GgmlType;
    use xxhash_rust::xxh3::xxh3_64;

    use super::super::format::{BLOCK, Region};
    use super::*;
    use crate::cpu::Arbiter;
    use crate::cpu::pack::{Checks, Layout};

    /// A file with three matrices of more than a turn each, with a wrong byte at `wrong`.
    fn file(wrong: Option<usize>) -> (Arc<FileMap>, Arc<InFile>) {
        let layout = Layout::new(GgmlType::Q8_0, 640, 2048).expect("a layout");
        let mut region =
            Region { name: "a".into(), layout, count: 3, scales: 0, at: BLOCK, sums: Vec::new() };
        assert!(region.turn() > 1 && !layout.groups().is_multiple_of(region.turn()));
        let mut bytes: Vec<u8> = (0..region.matrices().end).map(|i| (i * 31 % 251) as u8).collect();
        region.sums = (0..region.groups()).map(|i| xxh3_64(&bytes[region.group(i)])).collect();
        if let Some(at) = wrong {
            bytes[at] ^= 1;
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("written");
        let map = Arc::new(FileMap::new(file.as_file(), bytes.len()).expect("mapped"));
        (map.clone(), Arc::new(InFile::new(&map, region)))
    }

    #[test]
    fn a_check_ends_while_a_step_runs_and_finds_every_wrong_byte() {
        let (arbiter, go) = (Arbiter::default(), AtomicBool::new(false));
        // A step that does not end.
        let _permit = arbiter.acquire();
        let (map, right) = file(None);
        let last = right.region.matrices().end - 1;
        run(&map, vec![right.clone()], &[], &mut Pace::new(&arbiter), &go);
        assert!(right.is_done() && !map.is_lost());
        let second = right.region.group(right.region.turn()).start;
        for at in [BLOCK, second, last / 2, last] {
            let (map, wrong) = file(Some(at));
            run(&map, vec![wrong.clone()], &[], &mut Pace::new(&arbiter), &go);
            assert!(map.is_lost(), "byte {at}");
        }
        // One that is told to stop has checked nothing: steps still do.
        let (map, left) = file(Some(last));
        run(&map, vec![left.clone()], &[], &mut Pace::new(&arbiter), &AtomicBool::new(true));
        assert!(!left.is_done() && !map.is_lost() && !left.is_checked(2));
        left.check(2);
        assert!(map.is_lost() && left.is_checked(2));
    }
}
