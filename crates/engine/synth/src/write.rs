//! Writes a model as a GGUF file. Works for any opened model.

use std::ffi::OsString;
use std::fs::{File, FileType, TryLockError};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use octet_weights::gguf::Writer;
use octet_weights::{Metadata, Model};

use crate::Error;

/// Bytes written at once, between calls of `progress`.
const PIECE_BYTES: usize = 16 << 20;
/// Maximum padding of a tensor.
const PADDING_BYTES_MAX: u64 = 32;

/// Writes `model` to `path` and returns the file's length. `progress` gets the tensor bytes written so far and in total.
///
/// The file gets its name when it is complete and on disk: until then it is a hidden file in the same folder, which is removed on
/// failure; one that an earlier, interrupted run left for this output is removed at the start. An existing file is replaced only if `replace` is set; of a link, its target is replaced; a device, pipe or folder never
/// is. Needs memory for the largest tensor.
///
/// # Errors
/// If `path` exists or is not a file, its file system has too little space, or the system fails.
pub fn write(
    model: &Model,
    path: &Path,
    replace: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, Error> {
    let name = path.display().to_string();
    let io = |source| Error::Io { path: name.clone(), source };
    let target = place(path, replace)?;
    let path = target.as_path();
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));

    let parts = Parts::of(path);
    parts.remove_abandoned();

    // messages are about the file to be, not about where the model came from
    let mut metadata = Metadata::new(&name);
    for (key, value) in model.metadata.iter() {
        metadata.insert(key, value.clone());
    }
    let mut head = Vec::new();
    Writer::new(&mut head, &metadata, model.tensors().to_vec())?;
    let all: u64 = model.tensors().iter().map(|t| t.size_bytes()).sum();
    let need = all + head.len() as u64 + PADDING_BYTES_MAX * model.tensors().len() as u64;
    let free = fs4::available_space(directory).map_err(io)?;
    if need > free {
        return Err(Error::NoSpace { path: name, need, free });
    }

    let temporary = parts.create().map_err(io)?;
    let out = BufWriter::new(temporary.as_file());
    let mut writer = Writer::new(out, &metadata, model.tensors().to_vec())?;
    let mut done = 0;
    for info in model.tensors() {
        let tensor = model.tensor(&info.name, &info.shape)?;
        for piece in tensor.data.chunks(PIECE_BYTES) {
            writer.append(piece)?;
            done += piece.len() as u64;
            progress(done, all);
        }
        model.release(&info.name);
    }
    model.check_files()?;
    drop(writer.finish()?);
    temporary.as_file().sync_all().map_err(io)?;
    let file = if replace {
        temporary.persist(path)
    } else {
        // Not even a file that has appeared meanwhile.
        temporary.persist_noclobber(path)
    };
    let file = file.map_err(|e| match e.error.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: name.clone() },
        _ => io(e.error),
    })?;
    sync_directory(directory).map_err(io)?;
    Ok(file.metadata().map_err(io)?.len())
}

/// Fails where [`write()`] would refuse `path`: it exists, without `replace`, or is not a file.
///
/// # Errors
/// As [`write()`].
pub fn check_output(path: &Path, replace: bool) -> Result<(), Error> {
    place(path, replace).map(drop)
}

/// The location of the file: `path`, or its target. Renaming a file onto something that is not a file would destroy that.
fn place(path: &Path, replace: bool) -> Result<PathBuf, Error> {
    let name = || path.display().to_string();
    let io = |source| Error::Io { path: name(), source };
    let Ok(there) = path.symlink_metadata() else { return Ok(path.to_path_buf()) };
    if path.is_dir() {
        return Err(Error::NotAFile { path: name(), what: "a folder" });
    }
    if !replace {
        return Err(Error::Exists { path: name() });
    }
    let (target, kind) = match there.is_symlink() {
        false => (path.to_path_buf(), there.file_type()),
        true => (path.canonicalize().map_err(io)?, path.metadata().map_err(io)?.file_type()),
    };
    if kind.is_file() { Ok(target) } else { Err(Error::NotAFile { path: name(), what: kind_of(kind) }) }
}

fn kind_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "no file" }
}

/// The hidden files that an output is written to until it is complete. The process that writes one holds a lock on it.
struct Parts {
    directory: PathBuf,
    /// What their names begin with: it has the output's.
    prefix: OsString,
}

/// What their names end with.
const PART: &str = ".part";
/// Bytes of the output's name in theirs; file systems allow 255 in all.
const NAME_BYTES_MAX: usize = 200;

impl Parts {
    /// Those of the output `path`.
    fn of(path: &Path) -> Self {
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default();
        // Names that are no UTF-8, or too long, are shortened to what can be written.
        let name: String = name.to_string_lossy().chars().take(NAME_BYTES_MAX / 4).collect();
        Self { directory: directory.into(), prefix: format!(".octet-{name}-").into() }
    }

    /// Removes what no running process writes, where that is possible: what another user left does not stop anything.
    fn remove_abandoned(&self) {
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            // What is between is as long as any other part's, so it is no other output's that begins with this one's name.
            let random = name
                .strip_prefix(self.prefix.as_encoded_bytes())
                .and_then(|rest| rest.strip_suffix(PART.as_bytes()));
            let is_part =
                random.is_some_and(|r| r.len() == RANDOM && r.iter().all(u8::is_ascii_alphanumeric));
            if is_part
                && entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Ok(file) = File::open(entry.path())
                && file.try_lock().is_ok()
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// A new one, locked, removed when dropped, with the permissions of any other new file.
    fn create(&self) -> io::Result<tempfile::NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&self.prefix).suffix(PART).rand_bytes(RANDOM);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666)); // less what umask takes away
        }
        let file = builder.tempfile_in(&self.directory)?;
        match file.as_file().try_lock() {
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Random letters in the name of a part.
const RANDOM: usize = 6;

/// Makes a rename in `directory` durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}
