//! The header of a GGUF file that is not on this machine: its metadata and its list of tensors, by range requests.
//!
//! The header is written to a temporary file as long as the real one, whose rest is a hole: readers of model files see sizes and types, and
//! take no room on the disk.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use url::Url;

use crate::config::Secret;
use crate::error::{Class, Error};
use crate::fetcher::Fetcher;
use crate::http::{Call, Trust};
use crate::progress::Progress;

/// The first request's bytes: enough for most, as the tokenizer's vocabulary is in the header.
const FIRST: u64 = 8 << 20;
/// No header is longer.
const HEADER_BYTES_MAX: u64 = 512 << 20;
/// Longest string, and most elements of an array: more is damage.
const COUNT_MAX: u64 = 1 << 32;

/// The headers of a model, and of the projector that lies beside it, in files that are deleted when this is dropped.
pub struct Preview {
    _folder: TempDir,
    first: PathBuf,
    /// Bytes of all files together.
    pub size: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
}

impl Preview {
    /// The first file. Its weights are a hole: only sizes, types and metadata can be read.
    pub fn path(&self) -> &Path {
        &self.first
    }
}

/// A file to look into.
pub(crate) struct Remote<'a> {
    pub name: &'a str,
    pub url: &'a Url,
    pub token: Option<&'a Secret>,
}

/// Fetches the headers of these files, all parts of a model and its projector.
pub(crate) fn fetch(
    fetcher: &Fetcher,
    remotes: &[Remote<'_>],
    progress: &dyn Progress,
) -> Result<Preview, Error> {
    let folder = tempfile::tempdir().map_err(|e| Error::io(Path::new("a temporary folder"), e))?;
    let (mut size, mut fetched, mut first) = (0, 0, None);
    for remote in remotes {
        let base = remote.name.rsplit('/').next().unwrap_or(remote.name);
        let path = folder.path().join(base);
        let (bytes, total) = header(fetcher, remote, progress)?;
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&path)?;
            file.write_all(&bytes)?;
            file.set_len(total)
        };
        write().map_err(|e| Error::io(&path, e))?;
        size += total;
        fetched += bytes.len() as u64;
        first.get_or_insert(path);
    }
    let first = first.unwrap_or_else(|| folder.path().to_path_buf());
    Ok(Preview { _folder: folder, first, size, fetched })
}

/// The header of one file, and the file's size.
fn header(fetcher: &Fetcher, remote: &Remote<'_>, progress: &dyn Progress) -> Result<(Vec<u8>, u64), Error> {
    let odd = |what: &str| Error::fetch(remote.url, format!("{}: {what}", remote.name), Class::Permanent);
    let mut want = FIRST;
    loop {
        let mut call = Call { token: remote.token, ..Call::get(remote.url, Trust::System) };
        call.headers.push(("range", format!("bytes=0-{}", want - 1)));
        let answer = fetcher.http.send_retrying(&call, remote.name, progress)?;
        let total = match answer.status {
            206 => answer.content_range().and_then(|(_, _, total)| total),
            // A server without ranges sends the whole; the rest of it is not read.
            200 => answer.content_length(),
            _ => None,
        };
        let total = total.ok_or_else(|| odd("the server does not say how long the file is"))?;
        let mut bytes = Vec::new();
        let read = answer.body.take(want.min(total)).read_to_end(&mut bytes);
        read.map_err(|e| odd(&format!("the connection broke: {e}")))?;
        if !bytes.starts_with(b"GGUF") {
            return Err(odd("is not a GGUF file"));
        }
        match header_bytes(&bytes) {
            Some(_) => return Ok((bytes, total)),
            None if bytes.len() as u64 == total || want >= HEADER_BYTES_MAX => {
                return Err(odd("its header is damaged"));
            }
            None => want *= 4,
        }
    }
}

/// Length of a GGUF header; `None` if `bytes` do not hold all of it.
fn header_bytes(bytes: &[u8]) -> Option<usize> {
    let mut r = Walk { bytes, at: 4 };
    let _version = r.u32()?;
    let (tensors, keys) = (r.count()?, r.count()?);
    for _ in 0..keys {
        r.string()?;
        let kind = r.u32()?;
        r.value(kind, 4)?;
    }
    for _ in 0..tensors {
        r.string()?;
        let dimensions = r.u32()?;
        r.skip(u64::from(dimensions).checked_mul(8)?)?;
        r.skip(4 + 8)?;
    }
    Some(r.at)
}

/// A walk over a header.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn skip(&mut self, n: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(n).ok()?)?;
        (end <= self.bytes.len()).then(|| self.at = end)
    }

    fn u32(&mut self) -> Option<u32> {
        let at = self.at;
        self.skip(4)?;
        Some(u32::from_le_bytes(self.bytes[at..at + 4].try_into().ok()?))
    }

    fn count(&mut self) -> Option<u64> {
        let at = self.at;
        self.skip(8)?;
        Some(u64::from_le_bytes(self.bytes[at..at + 8].try_into().ok()?)).filter(|n| *n < COUNT_MAX)
    }

    fn string(&mut self) -> Option<()> {
        let length = self.count()?;
        self.skip(length)
    }

    /// A value of this type; arrays may lie in arrays, to this depth.
    fn value(&mut self, kind: u32, depth: usize) -> Option<()> {
        match kind {
            0 | 1 | 7 => self.skip(1),
            2 | 3 => self.skip(2),
            4..=6 => self.skip(4),
            8 => self.string(),
            10..=12 => self.skip(8),
            9 if depth > 0 => {
                let (of, n) = (self.u32()?, self.count()?);
                for _ in 0..n {
                    self.value(of, depth - 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_ends_where_its_tensors_do() {
        let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
        let mut file = [
            b"GGUF".to_vec(),
            3u32.to_le_bytes().to_vec(),
            1u64.to_le_bytes().to_vec(),
            2u64.to_le_bytes().to_vec(),
        ]
        .concat();
        file.extend([text("a"), 8u32.to_le_bytes().to_vec(), text("value")].concat());
        file.extend(
            [
                text("b"),
                9u32.to_le_bytes().to_vec(),
                8u32.to_le_bytes().to_vec(),
                2u64.to_le_bytes().to_vec(),
                text("x"),
                text("yz"),
            ]
            .concat(),
        );
        file.extend([text("t"), 2u32.to_le_bytes().to_vec(), vec![0; 16], vec![0; 12]].concat());
        let end = file.len();
        file.extend([0; 100]);
        assert_eq!(header_bytes(&file), Some(end));
        for cut in 4..end {
            assert_eq!(header_bytes(&file[..cut]), None, "{cut}");
        }
        // Counts that nothing can hold end at once.
        let mut huge = file.clone();
        huge[8..16].fill(0xff);
        assert_eq!(header_bytes(&huge), None);
    }
}
