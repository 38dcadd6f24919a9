//! Models that are larger than the memory that the process may use: their experts stay on disk, and answers are the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use octet_synth::{MoeShape, Shape, tiny_shape};

use crate::common::Place;

/// Limit of the process's data in KiB.
const LIMIT_KIB: u64 = 256 << 10;

/// A folder with a model of 400 MiB, nearly all of it experts.
fn large() -> Place {
    let place = Place::new();
    let moe = MoeShape { experts: 128, top_k: 2, intermediate: 1024, shared_intermediate: 0 };
    let shape = Shape { hidden: 512, moe: Some(moe), ..tiny_shape("qwen3moe").unwrap() };
    let model = octet_synth::synthetic(&shape, "q8_0".parse().unwrap(), None, 0).unwrap();
    octet_synth::write(&model, &place.path("model.gguf"), false, &mut |_, _| {}).unwrap();
    place
}

#[test]
fn a_model_larger_than_the_limit_answers_as_with_all_in_memory() {
    let place = large();
    let args = ["model.gguf", "--raw", "t1 t2 t3 t1 t2 t3 t1 t2 t9 t8", "-n", "24", "--temp", "0", "-t", "1"];
    let run = |more: &[&str]| place.octet(&[&["run"], &args[..], &["-c", "512"], more].concat());
    let want = run(&[]).ok();
    assert!(!want.stderr.contains("on disk") && !want.stdout.is_empty(), "{}", want.stderr);

    // With a limit of the process, which is found; more than it allows cannot be allocated.
    let octet = place.command(&[]);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -d {LIMIT_KIB}; exec \"$0\" run \"$@\" -c 512"));
    shell.arg(octet.get_program()).args(args).current_dir(place.dir.path()).env_clear();
    let got = place.run(shell.env("HOME", place.dir.path()), "").ok();
    assert!(
        got.stderr.contains("of experts stay on disk") && got.stderr.contains("of the 128 experts"),
        "{}",
        got.stderr
    );
    assert_eq!(got.stdout, want.stdout);

    // `show` says the same before anything is loaded.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -d {LIMIT_KIB}; exec \"$0\" show model.gguf -c 512"));
    shell.arg(octet.get_program()).current_dir(place.dir.path()).env_clear();
    let shown = place.run(shell.env("HOME", place.dir.path()), "").ok().stdout;
    let line = shown.lines().find(|l| l.trim_start().starts_with("on disk")).unwrap_or_default();
    assert!(line.contains("of experts, as") && line.contains("of 128 of each layer"), "{shown}");

    // With a limit by a flag.
    let got = run(&["--memory-limit", "200MiB"]).ok();
    assert!(got.stderr.contains("of experts stay on disk"), "{}", got.stderr);
    assert_eq!(got.stdout, want.stdout);
    run(&["--memory-limit", "50MiB"]).fails(1, &["does not fit", "--memory-limit allows 50 MiB", "at least"]);
    run(&["--memory-limit", "50MiB", "--no-memory-check"]).fails(1, &["does not fit"]);

    let bench = [
        "bench",
        "model.gguf",
        "-p",
        "16",
        "-n",
        "4",
        "-r",
        "1",
        "-t",
        "1",
        "--no-bandwidth",
        "--no-warmup",
        "-o",
        "jsonl",
    ];
    let rows = place.octet(&[&bench[..], &["--memory-limit", "200M,300M,4"]].concat()).ok().stdout;
    let rows: Vec<serde_json::Value> = rows.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let slots: Vec<Option<u64>> = rows.iter().map(|r| r["expert_slots"].as_u64()).collect();
    assert!(
        rows.len() == 6 && slots[0] == slots[1] && slots[0] < slots[2] && slots[4].is_none(),
        "{slots:?}"
    );
    assert!(slots[0].is_some() && rows[0]["disk_bytes_per_token"].as_u64() > Some(0), "{rows:?}");
    for test in 0..2 {
        assert_eq!(rows[test]["logits_hash"], rows[test + 4]["logits_hash"], "{rows:?}");
    }
}

/// A control group with a limit, which is removed at the end.
struct Group(PathBuf);

impl Group {
    /// `None` where this process may make none, or the system counts no memory in it.
    fn new(limit: u64) -> Option<Self> {
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        kinds.into_iter().find_map(|(root, file)| {
            let folder = Path::new(root).join(format!("octet-test-{}", std::process::id()));
            std::fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            std::fs::write(group.0.join(file), limit.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = std::time::Instant::now();
        // The last process may not have left it yet.
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_server_may_be_limited_to_what_its_control_group_allows() {
    let Some(group) = Group::new(320 << 20) else { return };
    let place = large();
    let flags = ["-c", "512", "-t", "1", "--parallel", "1", "--no-packed", "--memory-limit", "320MiB"];
    let octet = place.command(&[]);
    let command = || {
        let mut shell = Command::new("sh");
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$0\" serve \"$@\"", group.0.display());
        shell.arg("-c").arg(join).arg(octet.get_program()).arg("model.gguf").args(flags);
        shell.current_dir(place.dir.path()).env_clear().env("HOME", place.dir.path());
        shell
    };
    let served = crate::served::Served::start_command(command);
    let body = r#"{"model": "model", "prompt": "t1 t2 t3 t1 t2 t9", "max_tokens": 16, "temperature": 0, "ignore_eos": true}"#;
    let answer = served.post("/v1/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":16"), "{answer}");
    let metrics = served.get("/metrics");
    let read = metrics.lines().find(|l| l.starts_with("octet:expert_read_bytes_total"));
    let read: f64 = read.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0);
    assert!(read > 0.0, "{metrics}");
}
