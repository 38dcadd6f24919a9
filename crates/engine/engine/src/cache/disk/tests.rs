//! A folder that fails: writers that say so, and a disk that is full.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const STATE: usize = 5000;

fn key(n: usize) -> Key {
    let mut key = Key::default();
    key[..8].copy_from_slice(&n.to_le_bytes());
    key
}

/// The pause after a failure in tests: longer than any test.
const WAIT: Duration = Duration::from_secs(3600);

fn open(dir: &Path, bytes: u64, writer: Writer) -> Result<Disk, Error> {
    let mut disk = Disk::open_with(&DiskOptions { dir: dir.into(), bytes }, 1000, STATE, writer)?;
    disk.faults.wait = WAIT;
    Ok(disk)
}

/// Writes the `n`th state, and waits.
fn store(disk: &mut Disk, n: usize) -> bool {
    let taken = disk.takes_more()
        && disk.store_state(key(n), &key(1000), 0, 3, Arc::new(vec![n as u8; STATE]), Some(vec![7; 1000]));
    disk.flush();
    taken
}

fn read(disk: &mut Disk, n: usize) -> Result<Option<Vec<Vec<u8>>>, ()> {
    let mut reading = disk.read(&[], Some((key(n), vec![STATE, 1000]))).ok_or(())?;
    disk.next(&mut reading, Duration::from_secs(60))
}

fn stored(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum()
}

/// Like `file::write` to a disk with room for three states.
fn small(path: &Path, key: &Key, parts: &[Arc<Vec<u8>>]) -> std::io::Result<()> {
    let bytes: usize = parts.iter().map(|p| p.len()).sum();
    let room = 3 * file::file_bytes(STATE + 1000);
    match stored(path.parent().unwrap()) + file::file_bytes(bytes) <= room {
        true => file::write(path, key, parts),
        false => Err(std::io::ErrorKind::StorageFull.into()),
    }
}

#[test]
fn a_full_disk_evicts_the_least_used_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = open(dir.path(), 1 << 30, small).unwrap();
    for n in 0..3 {
        assert!(store(&mut disk, n));
    }
    assert!(!disk.in_backoff());
    assert!(store(&mut disk, 3), "it is tried");
    assert_eq!((disk.stats.errors, disk.stats.dropped, disk.stats.writes), (1, 1, 3));
    assert!(disk.in_backoff() && !store(&mut disk, 4), "and for a while nothing is");
    assert_eq!(disk.stats.errors, 1);
    // Stored files can be read meanwhile, which protects them from eviction.
    assert!(read(&mut disk, 0).is_ok_and(|parts| parts.is_some_and(|p| p[0] == vec![0; STATE])));
    disk.try_again();
    for n in 4..8 {
        assert!(store(&mut disk, n), "{n}");
        assert!(disk.has(&key(n)) && !disk.in_backoff());
    }
    assert_eq!((disk.stats.errors, disk.stats.evicted, disk.index.len()), (1, 4, 3));
    // Later, the disk has more room.
    disk.lowered = disk.lowered.map(|(bytes, since)| (bytes, since - LOWERED));
    assert_eq!(disk.limit(), 1 << 30);
    drop(disk);
    // It is also full at the next start, which is no reason not to use it.
    let mut disk = open(dir.path(), 1 << 30, small).unwrap();
    assert!(disk.lowered.is_some() && !disk.in_backoff());
    assert!(read(&mut disk, 7).is_ok_and(|parts| parts.is_some()));
    assert!(store(&mut disk, 9) && disk.has(&key(9)));
    assert_eq!(disk.stats.errors, 0);
}

#[test]
fn an_unwritable_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::PermissionDenied] {
        let writer: Writer = match kind {
            std::io::ErrorKind::ReadOnlyFilesystem => {
                |_, _, _| Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
            }
            _ => |_, _, _| Err(std::io::ErrorKind::PermissionDenied.into()),
        };
        let e = open(dir.path(), 1 << 30, writer).map(drop).unwrap_err().to_string();
        assert!(e.contains(dir.path().to_str().unwrap()) && e.contains("can be written to"), "{e}");
    }
    let disk = open(dir.path(), 1 << 30, file::write).unwrap();
    assert_eq!(stored(dir.path()), 0, "trying leaves nothing behind");
    drop(disk);
}

#[test]
fn a_failing_folder_is_retried_after_a_pause() {
    static WRITES: AtomicUsize = AtomicUsize::new(0);
    let dir = tempfile::tempdir().unwrap();
    let mut disk = open(dir.path(), 1 << 30, |path, key, parts| {
        match WRITES.fetch_add(1, Ordering::Relaxed) {
            0..2 => file::write(path, key, parts), // The first is the test at the start.
            _ => Err(std::io::Error::other("an unlucky disk")),
        }
    })
    .unwrap();
    assert!(store(&mut disk, 0) && store(&mut disk, 1));
    for n in 2..5 {
        assert!(!store(&mut disk, n));
    }
    assert_eq!(WRITES.load(Ordering::Relaxed), 3);
    assert_eq!((disk.stats.writes, disk.stats.errors, disk.stats.dropped), (1, 1, 1));
    // The budget is not the reason.
    assert_eq!((disk.limit(), disk.has(&key(0)), disk.has(&key(1))), (1 << 30, true, false));
    // Later.
    disk.faults.until = disk.faults.until.map(|until| until - WAIT);
    assert!(store(&mut disk, 5), "it is tried again");
    assert!(disk.in_backoff());
}

#[test]
fn unreadable_entries_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = open(dir.path(), 1 << 30, file::write).unwrap();
    (0..3).for_each(|n| assert!(store(&mut disk, n)));
    for (n, file) in std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path()).enumerate() {
        match n {
            0 => std::fs::write(file, "short").unwrap(),
            1 => std::fs::remove_file(file).unwrap(),
            _ => {}
        }
    }
    let read: Vec<bool> = (0..3).map(|n| read(&mut disk, n).is_ok()).collect();
    assert_eq!(read.iter().filter(|ok| **ok).count(), 1);
    assert_eq!((disk.stats.errors, disk.index.len()), (2, 1));
    assert!(!disk.in_backoff(), "files can still be written");
}

#[test]
fn a_removed_folder_is_created_again() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cache");
    let mut disk = open(&dir, 1 << 30, file::write).unwrap();
    (0..2).for_each(|n| assert!(store(&mut disk, n)));
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(store(&mut disk, 2) && disk.has(&key(2)) && !disk.in_backoff());
    assert_eq!((disk.stats.errors, disk.stats.dropped), (0, 0));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700, "only its owner may read it");
    }
    // Its entries are removed when they are requested.
    assert!(read(&mut disk, 0).is_err() && !disk.has(&key(0)));
    assert!(read(&mut disk, 2).is_ok_and(|parts| parts.is_some()));
}
