//! Loading weights: what others have put at the paths of packed weights stays as it is, damaged files are replaced with a word, and tables are
//! copied whole.
#![cfg(target_os = "linux")]

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use octet_compute::backend::{Backend, Error, FileId, Pass};
use octet_compute::batch::Batch;
use octet_compute::cpu::packed_file::{KeptFile, Notice, PackedFiles};
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_weights::{GgmlType, Matrix, Piece, Stamp, quant};

/// Longer than any load takes here.
const LONG: Duration = Duration::from_secs(20);
const SHAPE: [usize; 2] = [320, 512];

/// All that users were told.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Of that, what names a path, besides that a file is written.
fn said(path: &Path) -> Vec<String> {
    let all = SAID.lock().expect("messages");
    let about = |line: &&String| line.contains(&*path.to_string_lossy()) && !line.contains("are written to");
    all.iter().filter(about).cloned().collect()
}

/// Forgets what names a path.
fn forget(path: &Path) {
    SAID.lock().expect("messages").retain(|line| !line.contains(&*path.to_string_lossy()));
}

/// Loads a model of one matrix. Says whether it was kept.
fn load(dir: &Path) -> Result<(Cpu, bool), Error> {
    load_with(dir, &mut |_| {})
}

/// The same, and what else is loaded.
fn load_with(dir: &Path, more: &mut dyn FnMut(&mut Cpu)) -> Result<(Cpu, bool), Error> {
    let notice = Notice(|line| SAID.lock().expect("messages").push(line.into()));
    let files = PackedFiles { dir: dir.into(), least: 1, notice };
    let options =
        CpuOptions { threads: Some(1), pin: false, packed_files: Some(files), ..CpuOptions::default() };
    let mut cpu = Cpu::new(&options)?;
    let ty = GgmlType::Q4_K;
    let mut data = vec![0; SHAPE[0] * SHAPE[1] / ty.block_len() * ty.block_bytes()];
    quant::random_blocks(ty, &mut 7, 0.1, &mut data);
    let matrix = Matrix::new(ty, SHAPE[0], SHAPE[1], data.into());
    // Packed weights of models that are gone are removed: this one is there.
    cpu.begin_load(&FileId { key: [3; 32], path: std::env::current_exe().expect("a program") });
    let mut all = |cpu: &mut Cpu| {
        more(cpu);
        let kept = cpu.kept_weight("a", ty, SHAPE, None)?.is_some();
        if !kept {
            cpu.weight(&matrix, None)?;
        }
        cpu.end_load()?;
        Ok(kept)
    };
    match all(&mut cpu) {
        Err(_) if cpu.discard_kept() => all(&mut cpu),
        done => done,
    }
    .map(|kept| (cpu, kept))
}

/// Waits until packed weights are written.
fn written(dir: &Path) -> KeptFile {
    let start = Instant::now();
    loop {
        match &PackedFiles::list(dir)[..] {
            [kept] if kept.is_complete => return kept.clone(),
            other => assert!(start.elapsed() < LONG, "{other:?}"),
        }
        std::thread::yield_now();
    }
}

/// Where the packed weights are, in a folder without any.
fn place(dir: &Path) -> PathBuf {
    let (cpu, is_kept) = load(dir).expect("it loads");
    let kept = written(dir).path;
    assert!(!is_kept && load(dir).expect("it loads").1);
    drop(cpu);
    std::fs::remove_file(&kept).expect("removed");
    kept
}

const OTHERS: [&str; 7] = [
    "a pipe",
    "a folder",
    "a file of others",
    "a short file",
    "a link to a file",
    "a link to nothing",
    "a link to a device",
];

/// Puts one of these at a path; a link leads to `aside`.
fn put(what: &str, at: &Path, aside: &Path) {
    std::fs::write(aside, "of somebody else").expect("written");
    match what {
        "a pipe" => assert!(Command::new("mkfifo").arg(at).status().expect("mkfifo").success()),
        "a folder" => std::fs::create_dir(at).expect("a folder"),
        "a file of others" => std::fs::write(at, vec![7; 10_000]).expect("written"),
        "a short file" => std::fs::write(at, "octp").expect("written"),
        "a link to a file" => symlink(aside, at).expect("a link"),
        "a link to nothing" => symlink(aside.with_extension("none"), at).expect("a link"),
        "a link to a device" => symlink("/dev/zero", at).expect("a link"),
        other => panic!("{other}"),
    }
}

/// Why something at a path with this ending does not stay as it is; `None` if it does.
fn trouble(ending: &str, what: &str) -> Option<String> {
    // A folder of its own: a load that waits for ever stays behind.
    let dir = tempfile::tempdir().expect("a folder");
    let at = place(dir.path()).with_extension(ending);
    forget(dir.path());
    let aside = dir.path().join("aside");
    put(what, &at, &aside);
    let state = || {
        let meta = at.symlink_metadata().ok()?;
        let bytes = if meta.is_file() { std::fs::read(&at).ok() } else { None };
        Some((meta.file_type(), std::fs::read_link(&at).ok(), bytes))
    };
    let (before, (send, receive)) = (state(), channel());
    let folder = dir.path().to_path_buf();
    std::thread::spawn(move || send.send(load(&folder).map(|(_, is_kept)| is_kept).ok()));
    if receive.recv_timeout(LONG) != Ok(Some(false)) {
        return Some("it does not load".into());
    }
    let (lines, now) = (said(&at), std::fs::read_dir(dir.path()).expect("the folder").count());
    let is_same = before.is_some() && before == state() && now == 2 && !aside.with_extension("none").exists();
    let is_aside = std::fs::read(&aside).is_ok_and(|now| now == b"of somebody else");
    let is_right = is_same && is_aside && lines.len() == 1 && lines[0].contains("stays as it is");
    (!is_right).then(|| format!("same: {is_same}, the other: {is_aside}, {now} files, {lines:?}"))
}

#[test]
fn what_others_have_put_there_stays_as_it_is() {
    let mut failed = Vec::new();
    for ending in ["packed", "packed-part"] {
        for what in OTHERS {
            failed.extend(trouble(ending, what).map(|why| format!("{what} at .{ending}: {why}")));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Changes one byte, and keeps the file's time.
fn damage(kept: &KeptFile, at: u64) {
    std::fs::set_permissions(&kept.path, PermissionsExt::from_mode(0o600)).expect("its permissions");
    let file = std::fs::File::options().read(true).write(true).open(&kept.path).expect("the file");
    let time = file.metadata().and_then(|m| m.modified()).expect("its time");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[!byte[0]], at).expect("another one");
    file.set_modified(time).expect("its time");
}

#[test]
fn a_damaged_file_is_replaced_with_a_word() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = {
        let _cpu = load(dir.path()).expect("it loads");
        written(dir.path())
    };
    let whole = std::fs::read(&first.path).expect("the file");
    // The version, the rest of the header, weights, and the index: the last bytes that are not zeros.
    let index = whole.iter().rposition(|&b| b != 0).expect("an index") as u64;
    for (at, why) in [(7, "another version"), (100, "header"), (4096 + 50, "damaged"), (index, "index")] {
        damage(&first, at);
        forget(dir.path());
        let (cpu, is_kept) = load(dir.path()).expect("it loads");
        assert!(!is_kept, "byte {at}");
        let since = Instant::now();
        let is_whole = |now: &Vec<u8>| now[4096..] == whole[4096..] && now[at as usize] == whole[at as usize];
        while !std::fs::read(&first.path).is_ok_and(|now| is_whole(&now)) {
            assert!(since.elapsed() < LONG, "byte {at} is not replaced: {:?}", said(dir.path()));
            std::thread::yield_now();
        }
        let lines = said(&first.path);
        assert!(lines.len() == 1 && lines[0].contains(why), "byte {at}: {lines:?}");
        drop(cpu);
        assert!(load(dir.path()).expect("it loads").1, "byte {at}");
    }
}

#[test]
fn an_embedding_table_is_copied_whole() {
    let ty = GgmlType::Q8_0;
    for (threads, rows) in [(1, 1), (1, 20_001), (3, 20_001), (3, 7710)] {
        let mut cpu = Cpu::new(&CpuOptions { threads: Some(threads), pin: false, ..CpuOptions::default() })
            .expect("a team");
        let bytes = rows * 256 / ty.block_len() * ty.block_bytes();
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
        let table = Matrix::new(ty, rows, 256, data.into());
        let copy = cpu.embedding(&table).expect("memory");
        assert!(copy.data == table.data && (copy.rows, copy.cols) == (rows, 256), "{threads} {rows}");
        assert!(!table.data.as_ptr_range().contains(&copy.data.as_ptr()), "it is the same memory");
    }
}

/// Whether bytes are in memory of their own.
fn is_copied(bytes: &[u8]) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let number = |hex: &str| usize::from_str_radix(hex, 16).expect("an address");
    let own = |line: &&str| {
        let (first, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a mapping");
        number(first) < bytes.as_ptr_range().end as usize && (bytes.as_ptr() as usize) < number(end)
    };
    maps.lines().filter(own).all(|line| !line.contains('/'))
}

#[test]
fn a_table_is_read_in_the_models_file_until_it_is_copied() {
    let (ty, rows) = (GgmlType::Q8_0, 30_000);
    let len = rows * 256 / ty.block_len() * ty.block_bytes();
    let (start, end) = (4096 + 32, 4096 + 32 + len);
    let whole: Vec<u8> = (0..end.next_multiple_of(2 << 20) + 5).map(|i| (i * 31 % 251) as u8).collect();
    let table = Matrix::new(ty, rows, 256, whole[start..end].to_vec().into());
    let model = tempfile::NamedTempFile::new().expect("a file");
    let dir = tempfile::tempdir().expect("a folder");
    let piece = || {
        let stamp = Stamp::of(model.path()).expect("a file");
        Piece::of_file("the model", &stamp).expect("it opens").part(start..end)
    };
    let step = |cpu: &mut Cpu| cpu.step(Pass::Other, &Batch::default(), |_| {});
    let mut found = None;
    let mut take = |cpu: &mut Cpu| found = cpu.embedding_in_file(&table, &piece);
    std::fs::write(model.path(), &whole).expect("written");
    let writer = load_with(dir.path(), &mut take).expect("it loads");
    written(dir.path());
    drop(writer);
    assert!(found.is_none(), "all is packed");

    for change in [None, Some("bytes"), Some("truncated")] {
        std::fs::write(model.path(), &whole).expect("written");
        let mut found = None;
        let (mut cpu, is_kept) = load_with(dir.path(), &mut |cpu| {
            found = cpu.embedding_in_file(&table, &piece);
            let found = found.as_ref().expect("a table");
            assert!(found.data == table.data && !is_copied(&found.data) && found.rows == rows, "{change:?}");
            let file = std::fs::File::options().write(true).open(model.path()).expect("the file");
            match change {
                Some("bytes") => file.write_all_at(b"!", end as u64 - 9).expect("written"),
                Some(_) => file.set_len(start as u64 + 10).expect("truncated"),
                None => {}
            }
        })
        .expect("it loads");
        assert!(is_kept);
        let since = Instant::now();
        let said = loop {
            let said = step(&mut cpu).err().map(|e| e.to_string());
            if said.is_some() || change.is_none() && is_copied(&found.as_ref().expect("a table").data) {
                break said;
            }
            assert!(since.elapsed() < LONG, "{change:?}");
        };
        if change.is_some() {
            assert!(said.is_some_and(|s| s.contains("the model") && s.contains("load")), "{change:?}");
            continue;
        }
        // It has also been compared with the file as it was.
        drop(cpu);
        std::fs::write(model.path(), b"another model").expect("written");
        assert!(found.expect("a table").data == table.data);
    }
    // Without a whole huge page behind it, it is loaded as ever.
    std::fs::write(model.path(), &whole[..end]).expect("written");
    load_with(dir.path(), &mut |cpu| assert!(cpu.embedding_in_file(&table, &piece).is_none()))
        .expect("it loads");
}
