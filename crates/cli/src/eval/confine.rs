//! The command that confines itself and then becomes Python: `octet eval` starts it for code that a model wrote. It is a process of its
//! own, as the limits are for good. Nothing but these calls of the system is left to the code:
//!
//! - no sockets, no other processes, no signals to others;
//! - files are opened for reading only; nothing is made, changed or removed;
//! - limits of memory, processor time and open files.
//!
//! Called by `lib`; `code` starts it and limits its time and its output.

use std::path::PathBuf;

use clap::Args;

/// Exit code where the system does not provide the limits.
pub const REFUSED: i32 = 97;

/// Runs code of `octet eval`; not for users.
#[derive(Debug, Args)]
pub struct ConfinedArgs {
    /// The process that waits for the result.
    parent: u32,
    /// Python.
    program: PathBuf,
}

/// Becomes Python; returns only if that fails.
pub fn run(args: &ConfinedArgs) -> std::process::ExitCode {
    let why = match confined(args) {
        Ok(never) => match never {},
        Err(why) => why,
    };
    crate::stderr::note!("code is not run, as it cannot be confined: {why:#}");
    std::process::ExitCode::from(REFUSED as u8)
}

#[cfg(not(target_os = "linux"))]
fn confined(_: &ConfinedArgs) -> anyhow::Result<std::convert::Infallible> {
    anyhow::bail!("this works on Linux only")
}

#[cfg(target_os = "linux")]
use linux::confined;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use anyhow::{Context, ensure};
    use nix::libc;
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::signal::Signal;
    use nix::unistd::{execve, getpid, getppid, setsid};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    use super::ConfinedArgs;

    /// Runs the tests.
    const HARNESS: &str = include_str!("harness.py");
    /// Address space.
    const MEMORY: u64 = 1 << 30;
    /// Processor time in seconds; one more until the process is killed.
    const SECONDS: u64 = 10;
    const FILES: u64 = 64;

    pub fn confined(args: &ConfinedArgs) -> anyhow::Result<Infallible> {
        let program = CString::new(args.program.as_os_str().as_bytes())?;
        // Not a process of a terminal: nothing can be typed into it.
        setsid().context("a session of its own")?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        ensure!(getppid().as_raw().unsigned_abs() == args.parent, "nobody waits for the result");
        for (what, soft, hard) in [
            (Resource::RLIMIT_AS, MEMORY, MEMORY),
            (Resource::RLIMIT_CPU, SECONDS, SECONDS + 1),
            (Resource::RLIMIT_NOFILE, FILES, FILES),
            (Resource::RLIMIT_FSIZE, 0, 0),
            (Resource::RLIMIT_CORE, 0, 0),
            (Resource::RLIMIT_MEMLOCK, 0, 0),
        ] {
            setrlimit(what, soft, hard).with_context(|| format!("{what:?}"))?;
        }
        let program_name = program.clone();
        let words = ["-I", "-S", "-B", "-X", "utf8", "-c", HARNESS].map(CString::new);
        let words = std::iter::once(Ok(program_name)).chain(words).collect::<Result<Vec<_>, _>>()?;
        // These set no_new_privs, too. Of two answers to a call the first that is none of "allowed" counts.
        seccompiler::apply_filter(&no_clone3()?).context("seccomp")?;
        seccompiler::apply_filter(&filter()?).context("seccomp")?;
        let none: [CString; 0] = [];
        execve(&program, &words, &none).with_context(|| args.program.display().to_string())
    }

    /// All calls that Python needs to compute; any other fails as not permitted.
    fn filter() -> anyhow::Result<BpfProgram> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            CALLS.iter().map(|call| (*call, Vec::new())).collect();
        let own = u64::from(getpid().as_raw().unsigned_abs());
        let is = |arg, value| condition(arg, SeccompCmpOp::Eq, value);
        let masked = |arg, mask, value| condition(arg, SeccompCmpOp::MaskedEq(mask), value);
        let reads =
            !(libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_LARGEFILE | libc::O_NONBLOCK);
        // Bits above the flags are ignored by the system.
        let reads = u64::from(reads.cast_unsigned());
        let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
        let output = || condition(0, SeccompCmpOp::Le, 2);
        let mut only = vec![
            (libc::SYS_write, vec![output()?]),
            (libc::SYS_writev, vec![output()?]),
            (libc::SYS_openat, vec![masked(2, reads, 0)?]),
            (libc::SYS_clone, vec![masked(0, thread, thread)?]),
            (libc::SYS_kill, vec![is(0, own)?]),
            (libc::SYS_tgkill, vec![is(0, own)?]),
            // Limits are read, not set.
            (libc::SYS_prlimit64, vec![is(0, 0)?, is(2, 0)?]),
            (libc::SYS_prctl, vec![is(0, u64::from(libc::PR_SET_NAME.cast_unsigned()))?]),
        ];
        for request in [libc::TCGETS, libc::FIOCLEX, libc::FIONCLEX, libc::FIONREAD, libc::TIOCGWINSZ] {
            only.push((libc::SYS_ioctl, vec![is(1, request)?]));
        }
        for command in [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL] {
            only.push((libc::SYS_fcntl, vec![is(1, u64::from(command.cast_unsigned()))?]));
        }
        #[cfg(target_arch = "x86_64")]
        only.push((libc::SYS_open, vec![masked(1, reads, 0)?]));
        for (call, conditions) in only {
            rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        }
        let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let arch = std::env::consts::ARCH.try_into()?;
        Ok(SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?.try_into()?)
    }

    /// Says that the system has no clone3, whose flags lie in memory where no filter sees them: threads are then made by clone.
    fn no_clone3() -> anyhow::Result<BpfProgram> {
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let absent = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let arch = std::env::consts::ARCH.try_into()?;
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, absent, arch)?.try_into()?)
    }

    fn condition(arg: u8, op: SeccompCmpOp, value: u64) -> anyhow::Result<SeccompCondition> {
        Ok(SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value)?)
    }

    /// Allowed with any arguments. They change nothing but the process itself.
    const CALLS: &[i64] = &[
        // Files and pipes: reading only, as nothing can be opened otherwise.
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_lseek,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
        libc::SYS_getdents64,
        libc::SYS_getcwd,
        libc::SYS_fadvise64,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        // Memory.
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_membarrier,
        // Threads and signals.
        libc::SYS_futex,
        libc::SYS_clone3,
        libc::SYS_set_robust_list,
        libc::SYS_set_tid_address,
        libc::SYS_rseq,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_rt_sigpending,
        libc::SYS_sigaltstack,
        libc::SYS_setitimer,
        libc::SYS_getitimer,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_execve,
        // Time, names and numbers.
        libc::SYS_clock_gettime,
        libc::SYS_clock_getres,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_times,
        libc::SYS_getrusage,
        libc::SYS_getrandom,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_gettid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
        libc::SYS_getpgid,
        libc::SYS_getsid,
        libc::SYS_uname,
        libc::SYS_sysinfo,
        // Older forms of these.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_arch_prctl,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lstat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_access,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_readlink,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_getrlimit,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_time,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_alarm,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_getpgrp,
    ];
}
