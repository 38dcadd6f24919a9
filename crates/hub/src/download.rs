//! Downloads a range of an address into a file: with resumption, hashing and retries.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use url::Url;

use crate::cache::{create_parent, hex, remove_file};
use crate::config::Secret;
use crate::error::{Class, Error};
use crate::http::{Answer, Call, Http, Trust, broken};
use crate::progress::{Event, Meter};

const BUFFER: usize = 256 * 1024;

/// A byte range of an address.
pub(crate) struct Piece<'a> {
    pub url: &'a Url,
    pub token: Option<&'a Secret>,
    pub trust: Trust,
    /// The first byte.
    pub start: u64,
    /// Number of bytes; `None` up to an unknown end (then the download cannot be resumed).
    pub len: Option<u64>,
    /// The validator for `If-Range`, if the hash is not known in advance.
    pub validator: Option<&'a str>,
}

/// The result of an attempt.
enum Outcome {
    Complete,
    /// The connection failed; the file has the bytes received so far.
    Partial(Error),
}

/// The file being written, and the hash of its content.
struct Part<'a> {
    path: &'a Path,
    file: File,
    have: u64,
    hash: Sha256,
}

/// Fills `path` with the bytes of `piece`, after those already there. Returns the SHA-256 (lower-case hexadecimal) and the number of bytes.
/// After a failure `path` keeps the received bytes for the next call.
pub(crate) fn fetch(
    http: &Http,
    piece: &Piece<'_>,
    path: &Path,
    meter: &mut Meter<'_>,
) -> Result<(String, u64), Error> {
    let mut part = Part::open(path, piece.len, meter)?;
    match fill(http, piece, &mut part, meter) {
        Ok(()) => Ok((hex(&part.hash.finalize()), part.have)),
        Err(e) => {
            // An empty file is removed.
            if part.have == 0 && !e.is_local() {
                drop(part);
                remove_file(path)?;
            }
            Err(e)
        }
    }
}

/// Retries until all bytes have arrived.
fn fill(http: &Http, piece: &Piece<'_>, part: &mut Part<'_>, meter: &mut Meter<'_>) -> Result<(), Error> {
    let mut tries = 0;
    while piece.len.is_none_or(|len| part.have < len) || part.have == 0 {
        let before = part.have;
        let failure = match attempt(http, piece, part, meter) {
            Ok(Outcome::Complete) => break,
            Ok(Outcome::Partial(e)) => e,
            Err(e) => e,
        };
        if part.have > before {
            tries = 0;
        }
        // A network that fails during a download usually recovers; one that never answered may not.
        let again = match failure.class() {
            Some(Class::Transient(_)) => true,
            Some(Class::Unreachable) => part.have > 0,
            _ => false,
        };
        if !again || tries >= http.patience().retries {
            return Err(failure);
        }
        let delay = http.delay(&failure, tries);
        meter.event(Event::Retrying { file: meter.file, why: &failure, delay });
        std::thread::sleep(delay);
        tries += 1;
        if piece.len.is_none() {
            part.restart(meter)?;
        }
    }
    part.file.flush().map_err(|e| Error::io(part.path, e))?;
    meter.done();
    Ok(())
}

/// One request with its body.
fn attempt(
    http: &Http,
    piece: &Piece<'_>,
    part: &mut Part<'_>,
    meter: &mut Meter<'_>,
) -> Result<Outcome, Error> {
    let mut call = Call { token: piece.token, ..Call::get(piece.url, piece.trust) };
    let from = piece.start + part.have;
    let ranged = from > 0;
    if ranged {
        let last = piece.len.map(|len| (piece.start + len - 1).to_string()).unwrap_or_default();
        call.headers.push(("range", format!("bytes={from}-{last}")));
        call.headers.extend(piece.validator.filter(|_| part.have > 0).map(|v| ("if-range", v.to_string())));
    }
    let answer = http.send(&call)?;
    match answer.status {
        206 => match answer.content_range() {
            Some((first, ..)) if ranged && first == from => {}
            _ => return Err(permanent(&answer, "sent a different range than requested")),
        },
        416 => {
            // The bytes here cannot be from this file.
            part.restart(meter)?;
            return Ok(Outcome::Partial(transient(
                &answer,
                "does not have the requested range; starting over",
            )));
        }
        200 if piece.start > 0 => {
            return Err(Error::fetch(
                &answer.url,
                "the server does not support range requests",
                Class::NoRanges,
            ));
        }
        200 => {
            // The server does not support ranges, or the file has changed.
            if part.have > 0 {
                meter.event(Event::Note("the server cannot resume this download; starting over"));
                part.restart(meter)?;
            }
            if let (Some(len), Some(sent)) = (piece.len, answer.content_length())
                && len != sent
            {
                return Err(permanent(
                    &answer,
                    &format!("sends {sent} bytes instead of the announced {len}"),
                ));
            }
        }
        status => return Err(permanent(&answer, &format!("answered {status} instead of a file"))),
    }
    copy(answer, piece, part, meter)
}

fn copy(
    answer: Answer,
    piece: &Piece<'_>,
    part: &mut Part<'_>,
    meter: &mut Meter<'_>,
) -> Result<Outcome, Error> {
    let url = answer.url;
    let mut body = answer.body;
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = match body.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Ok(Outcome::Partial(broken(&url, &e))),
        };
        match piece.len {
            Some(len) if n == 0 && part.have < len => {
                let what = format!("the connection closed after {} of {len} bytes", part.have);
                return Ok(Outcome::Partial(Error::fetch(&url, what, Class::Transient(None))));
            }
            Some(len) if part.have + n as u64 > len => {
                part.restart(meter)?;
                return Err(Error::fetch(
                    &url,
                    format!("sends more than the {len} bytes announced"),
                    Class::Permanent,
                ));
            }
            _ if n == 0 => return Ok(Outcome::Complete),
            _ => part.write(&buffer[..n], piece.len)?,
        }
        meter.add(n as u64);
        if piece.len == Some(part.have) {
            return Ok(Outcome::Complete);
        }
    }
}

fn permanent(answer: &Answer, what: &str) -> Error {
    Error::fetch(&answer.url, format!("the server {what}"), Class::Permanent)
}

fn transient(answer: &Answer, what: &str) -> Error {
    Error::fetch(&answer.url, format!("the server {what}"), Class::Transient(None))
}

impl<'a> Part<'a> {
    /// Opens the file of an earlier call, and hashes it.
    fn open(path: &'a Path, len: Option<u64>, meter: &mut Meter<'_>) -> Result<Self, Error> {
        create_parent(path)?;
        let io = |e| Error::io(path, e);
        let file =
            File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut part = Self { path, file, have: 0, hash: Sha256::new() };
        if size == 0 {
            return Ok(part);
        }
        if len.is_none_or(|len| size > len) {
            part.restart(meter)?;
            return Ok(part);
        }
        meter.event(Event::Checking { file: meter.file, bytes: size });
        let mut buffer = vec![0; BUFFER];
        while part.have < size {
            match part.file.read(&mut buffer).map_err(io)? {
                0 => break,
                n => {
                    part.hash.update(&buffer[..n]);
                    part.have += n as u64;
                }
            }
        }
        meter.set(part.have);
        Ok(part)
    }

    /// Removes the content.
    fn restart(&mut self, meter: &mut Meter<'_>) -> Result<(), Error> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(|e| Error::io(self.path, e))?;
        self.have = 0;
        self.hash = Sha256::new();
        meter.set(0);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], len: Option<u64>) -> Result<(), Error> {
        if let Err(e) = self.file.write_all(bytes) {
            // A part of the buffer may be on disk; the next call hashes whatever is there.
            return Err(match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::DiskFull {
                    path: self.path.to_path_buf(),
                    need: len.map_or(bytes.len() as u64, |len| len - self.have),
                },
                _ => Error::io(self.path, e),
            });
        }
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }
}
