//! The threads that access files: one writes and deletes, one reads. The engine's thread only sends and receives, and waits for neither.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::JoinHandle;

use super::super::key::Key;
use super::faults::Kind;
use super::index::{Item, Name};
use super::{file, make_dir};

/// A job of the writing thread; jobs run in order.
pub enum Write {
    Store { item: Item, key: Key, parts: Vec<Arc<Vec<u8>>> },
    Delete(Item),
}

/// A file to read, in parts of these lengths.
pub struct Wanted {
    pub item: Item,
    pub key: Key,
    pub lengths: Vec<usize>,
}

/// A file's contents, or the name of a file that could not be read, and why.
pub type Part = Result<Vec<Vec<u8>>, (Name, io::Error)>;

/// Writes a file: its path, its key and its parts.
pub type Writer = fn(&Path, &Key, &[Arc<Vec<u8>>]) -> io::Result<()>;

/// The files of one sequence to read. They arrive one by one, so that few are in memory at once; dropping the receiver cancels the
/// rest.
pub struct Read {
    pub wanted: Vec<Wanted>,
    pub to: SyncSender<Part>,
}

/// Both threads. When dropped, they finish queued jobs.
pub struct Threads {
    write: Option<Sender<Write>>,
    read: Option<Sender<Read>>,
    /// The result of each write.
    pub written: Receiver<(Item, io::Result<()>)>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub fn start(dir: &Path, writer: Writer) -> io::Result<Self> {
        let (write, writes) = channel();
        let (read, reads) = channel();
        let (done, written) = channel();
        let spawn =
            |name: &str, f: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(f);
        let (to_write, to_read) = (dir.to_path_buf(), dir.to_path_buf());
        let handles = vec![
            spawn("octet-cache-write", Box::new(move || write_all(&to_write, writer, &writes, &done)))?,
            spawn("octet-cache-read", Box::new(move || read_all(&to_read, &reads)))?,
        ];
        Ok(Self { write: Some(write), read: Some(read), written, handles })
    }

    /// False if the thread has ended.
    pub fn write(&self, job: Write) -> bool {
        self.write.as_ref().is_some_and(|to| to.send(job).is_ok())
    }
    /// False if the thread has ended.
    pub fn read(&self, job: Read) -> bool {
        self.read.as_ref().is_some_and(|to| to.send(job).is_ok())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.write = None;
        self.read = None;
        for handle in self.handles.drain(..) {
            let _ = handle.join(); // A panic no longer matters.
        }
    }
}

fn write_all(dir: &Path, writer: Writer, jobs: &Receiver<Write>, done: &Sender<(Item, io::Result<()>)>) {
    for job in jobs {
        match job {
            Write::Store { item, key, parts } => {
                let write = || writer(&dir.join(item.file()), &key, &parts);
                let mut result = write();
                // The folder was deleted. Missing files are noticed one by one.
                if result.as_ref().is_err_and(|e| Kind::of(e) == Kind::Gone) && make_dir(dir).is_ok() {
                    result = write();
                }
                drop(parts);
                let _ = done.send((item, result)); // Without a receiver, the rest is stored nevertheless.
            }
            Write::Delete(item) => {
                let _ = std::fs::remove_file(dir.join(item.file())); // It may be deleted already.
            }
        }
    }
}

fn read_all(dir: &Path, jobs: &Receiver<Read>) {
    for Read { wanted, to } in jobs {
        for Wanted { item, key, lengths } in wanted {
            let part = file::read(&dir.join(item.file()), &key, &lengths).map_err(|e| (item.name, e));
            let failed = part.is_err();
            if to.send(part).is_err() || failed {
                break;
            }
        }
    }
}
