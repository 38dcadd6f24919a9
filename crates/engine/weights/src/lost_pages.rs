//! Mapped files of which pages can be missing: an access to a page that a mapped file no longer has, or that the drive cannot read, is a
//! signal (SIGBUS), which would end the process. In a mapping that is watched here, such pages become zeros, and it counts as lost.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Once, OnceLock};

/// A mapping that is in use: what the signal's handler looks at.
struct Entry {
    /// 0 if it is free.
    start: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

/// More than the files that a process has mapped: models of a thousand shards are published.
const ENTRIES: usize = 4096;
static IN_USE: [Entry; ENTRIES] = [const {
    Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_lost: AtomicBool::new(false) }
}; ENTRIES];
/// Entries from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// What the process did with the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping, watched until this is dropped.
pub struct Watched(&'static Entry);

impl Watched {
    /// Watches a read-only mapping of a file at these addresses. Drop it before the mapping is removed.
    ///
    /// # Errors
    /// If the system does not report missing pages, or thousands of mappings are watched.
    pub fn new(range: Range<usize>) -> io::Result<Self> {
        watch_signal()?;
        let is_free = |e: &&Entry| e.start.compare_exchange(0, range.start, AcqRel, Relaxed).is_ok();
        let Some((at, entry)) = IN_USE.iter().enumerate().find(|(_, e)| is_free(e)) else {
            return Err(io::Error::other("too many mapped files"));
        };
        USED.fetch_max(at + 1, AcqRel);
        entry.is_lost.store(false, Release);
        entry.end.store(range.end, Release);
        Ok(Self(entry))
    }

    /// Whether a page was missing, or bytes were wrong.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Acquire)
    }

    /// Its bytes are wrong.
    pub fn lose(&self) {
        self.0.is_lost.store(true, Release);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.end.store(0, Release);
        self.0.start.store(0, Release);
    }
}

/// Handles SIGBUS from now on; once for all.
fn watch_signal() -> io::Result<()> {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: zeros are a valid structure, and the handler does only what a handler may.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut own: libc::sigaction = std::mem::zeroed();
            own.sa_sigaction = on_signal as *const () as usize;
            own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(libc::SIGBUS, &own, &mut before) == 0 {
                let _ = BEFORE.set(before); // once only
            }
        }
    });
    match BEFORE.get() {
        Some(_) => Ok(()),
        None => Err(io::Error::other("the system does not report missing pages")),
    }
}

/// Puts zeros where a mapped file ends too early. Any other such signal goes the way it went before.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system gives a valid structure.
    let at = unsafe { (*info).si_addr() } as usize;
    // The largest page size in use, so that this needs no call; what lies before `at` in it is lost, too.
    let page = at / (64 << 10) * (64 << 10);
    for e in &IN_USE[..USED.load(Acquire)] {
        let (start, end) = (e.start.load(Acquire), e.end.load(Acquire));
        if !(start..end).contains(&at) {
            continue;
        }
        e.is_lost.store(true, Release);
        let from = page.max(start);
        // SAFETY: within the mapping; only system calls, and `errno` stays as it was.
        unsafe {
            let errno = *libc::__errno_location();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let zeros = libc::mmap(from as *mut _, end - from, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            if zeros != libc::MAP_FAILED {
                return;
            }
        }
    }
    let before = BEFORE.get().map_or(libc::SIG_DFL, |b| b.sa_sigaction);
    let has_info = BEFORE.get().is_some_and(|b| b.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: what the system said is the handler, with its kind of arguments.
    unsafe {
        match before {
            // The access is repeated, and then ends the process.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
            }
            f if has_info => {
                let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(f);
                f(signal, info, context);
            }
            f => {
                let f: extern "C" fn(i32) = std::mem::transmute(f);
                f(signal);
            }
        }
    }
}
