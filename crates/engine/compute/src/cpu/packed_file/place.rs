//! What is at the path of a file of packed weights. It may be anything: only what begins as such a file is read, replaced or removed.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::format::{Header, IS_OURS, MAGIC};

/// What is at a path.
pub enum Found {
    /// Nothing.
    Nothing,
    /// A file of packed weights, open for reading, with its header, or what is wrong with that.
    Ours(File, Result<Header, &'static str>),
    /// Something else, or what cannot be read, in words: it stays as it is.
    Other(String),
}

/// What a path is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A complete file; a link to one will do.
    Complete,
    /// A file that is being written. Never a link, as what it leads to would be overwritten. One that is empty was just begun.
    Part,
}

/// Looks at a path. Does not wait for the other end of a pipe, nor open a device.
pub fn look(path: &Path, role: Role) -> Found {
    let meta = match role {
        Role::Complete => path.metadata(),
        Role::Part => path.symlink_metadata(),
    };
    match meta {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return match path.symlink_metadata() {
                Ok(_) => Found::Other("a link to nothing".into()),
                Err(e) if e.kind() == ErrorKind::NotFound => Found::Nothing,
                Err(e) => cannot_be_read(&e),
            };
        }
        Err(e) => return cannot_be_read(&e),
        Ok(meta) if !meta.is_file() => return Found::Other(kind(&meta).into()),
        Ok(_) => {}
    }
    read(path, role).unwrap_or_else(|e| cannot_be_read(&e))
}

fn cannot_be_read(e: &io::Error) -> Found {
    Found::Other(format!("something that cannot be read: {e}"))
}

fn read(path: &Path, role: Role) -> io::Result<Found> {
    let mut file = open(OpenOptions::new().read(true), path, role)?;
    let mut magic = Vec::new();
    (&mut file).take(8).read_to_end(&mut magic)?;
    let header = match <[u8; 8]>::try_from(&*magic) {
        Err(_) if magic.is_empty() && role == Role::Part => Err("it is empty"),
        Ok(magic) if MAGIC.contains(&u64::from_le_bytes(magic)) => {
            Header::read(&mut file)?.ok_or("its header is damaged")
        }
        Ok(magic) if IS_OURS.iter().any(|ours| magic.starts_with(ours)) => {
            Err("another version of Octet has written it, or its header is damaged")
        }
        _ => return Ok(Found::Other("not a file of packed weights".into())),
    };
    Ok(Found::Ours(file, header))
}

/// What is no regular file.
fn kind(meta: &Metadata) -> &'static str {
    if meta.is_dir() {
        "a folder"
    } else if meta.is_symlink() {
        "a link"
    } else {
        "no regular file"
    }
}

/// Opens a regular file: what came to be at the path since it was looked at may be anything else.
fn open(options: &mut OpenOptions, path: &Path, role: Role) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let follows = if role == Role::Part { libc::O_NOFOLLOW } else { 0 };
        options.custom_flags(libc::O_NONBLOCK | follows);
    }
    let file = options.open(path)?;
    match file.metadata()? {
        meta if meta.is_file() && (role == Role::Complete || is_at(&file, path)?) => Ok(file),
        meta => Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {}", kind(&meta)))),
    }
}

/// Whether `file` is the one at a path, without a link.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let [open, there] = [file.metadata()?, path.symlink_metadata()?].map(|m| (m.dev(), m.ino(), m.is_file()));
    Ok(open == there)
}

/// Whether a file is at a path, without a link.
#[cfg(not(unix))]
pub fn is_at(_: &File, path: &Path) -> io::Result<bool> {
    Ok(path.symlink_metadata()?.is_file()) // only Linux keeps packed weights
}

/// Opens a file to be written, or begins one.
pub fn open_part(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if matches!(look(path, Role::Part), Found::Nothing) {
        match open(options.clone().create_new(true), path, Role::Part) {
            // Another process has begun it meanwhile.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
    }
    match look(path, Role::Part) {
        Found::Ours(..) => open(&mut options, path, Role::Part),
        Found::Other(what) => Err(io::Error::new(ErrorKind::AlreadyExists, stays(&what))),
        // Another process has completed it meanwhile, and given it its name.
        Found::Nothing => Err(ErrorKind::NotFound.into()),
    }
}

/// Why something at a path is not used.
pub fn stays(what: &str) -> String {
    format!("it is {what}, which stays as it is")
}

/// Removes a file of packed weights; true if it was one.
pub fn remove(path: &Path, role: Role) -> io::Result<bool> {
    match look(path, role) {
        Found::Ours(..) => std::fs::remove_file(path).map(|()| true),
        Found::Nothing | Found::Other(_) => Ok(false),
    }
}

/// The header of the file at `path`, if it is one of packed weights.
pub fn header_of(path: &Path, role: Role) -> Option<Header> {
    match look(path, role) {
        Found::Ours(_, header) => header.ok(),
        Found::Nothing | Found::Other(_) => None,
    }
}
