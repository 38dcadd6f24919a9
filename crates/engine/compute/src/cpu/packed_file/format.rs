//! The format of a file of packed weights.
//!
//! `header [4096] | regions, each from a multiple of 4096 | index | zeros up to a huge page`, all numbers little-endian. A region has the
//! packed bytes of a tensor's matrices and then their rows' factors. The index has a checksum for each group of rows. The header has
//! checksums of itself and of the index, and the time that the file was given when it was complete: whoever writes to it later changes
//! that. Nothing in a file is trusted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::time::{Duration, SystemTime};

use octet_weights::{GgmlType, Matrix};
use xxhash_rust::xxh3::xxh3_64;

use crate::backend::FileId;
use crate::cpu::kind::ROWS;
use crate::cpu::map::HUGE_BYTES;
use crate::cpu::pack::Layout;

/// A file that is complete, and one that is being written.
pub const MAGIC: [u64; 2] = [u64::from_le_bytes(*b"octpack\x02"), u64::from_le_bytes(*b"octpart\x02")];
/// What these, and those of other versions, begin with.
pub const IS_OURS: [&[u8]; 2] = [b"octpack", b"octpart"];
/// Bytes of the header, and what regions begin at multiples of.
pub const BLOCK: usize = 4096;
/// An index is smaller: a group has at least some hundred bytes, and nearly always some ten thousand.
const INDEX_MAX: u64 = 1 << 30;
/// What is done at once beside steps.
const TURN_BYTES: usize = 1 << 20;
/// A path in a header is shorter.
const PATH_MAX: usize = BLOCK - 128;

/// Matrices of one shape, and where they are in a file.
#[derive(Debug, Clone)]
pub struct Region {
    pub name: String,
    pub layout: Layout,
    pub count: usize,
    /// Factors of rows: see `Packed::set_scales`.
    pub scales: usize,
    pub at: usize,
    /// Checksums of the groups of all matrices, and one of the factors, if there are some.
    pub sums: Vec<u64>,
}

impl Region {
    /// Bytes of one matrix.
    pub fn matrix_bytes(&self) -> usize {
        self.layout.matrix_bytes()
    }
    /// Where its matrices are.
    pub fn matrices(&self) -> Range<usize> {
        self.at..self.at + self.count * self.matrix_bytes()
    }
    /// Where the factors are.
    pub fn factors(&self) -> Range<usize> {
        let at = self.matrices().end;
        at..at + 4 * self.scales
    }
    /// Where a group of rows is, counted over all matrices.
    pub fn group(&self, i: usize) -> Range<usize> {
        let bytes = self.layout.group_bytes();
        self.at + i * bytes..self.at + (i + 1) * bytes
    }
    /// Groups of all matrices.
    pub fn groups(&self) -> usize {
        self.count * self.layout.groups()
    }
    /// Groups that are compared, or written, at once: a millisecond or so of work.
    pub fn turn(&self) -> usize {
        (TURN_BYTES / self.layout.group_bytes().max(1)).max(1)
    }
}

/// What stands at the beginning of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    pub is_complete: bool,
    pub key: [u8; 32],
    /// Of the complete file; of one that is being written, how far it is done.
    pub bytes: u64,
    pub index_at: u64,
    pub index_bytes: u64,
    /// The index's checksum; of a file that is being written, that of what is to be written.
    pub index_sum: u64,
    /// When it was completed, in seconds since 1970.
    pub written_s: u64,
    /// The model's file, as a name for people.
    pub path: String,
}

impl Header {
    /// Its bytes. A path that is too long is cut.
    pub fn bytes(&self) -> Vec<u8> {
        let path = &self.path[..self.path.floor_char_boundary(PATH_MAX)];
        let mut out = Vec::with_capacity(BLOCK);
        out.extend(MAGIC[usize::from(!self.is_complete)].to_le_bytes());
        out.extend(self.key);
        let numbers = [self.bytes, self.index_at, self.index_bytes, self.index_sum, self.written_s];
        numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend((path.len() as u64).to_le_bytes());
        out.extend(path.as_bytes());
        out.resize(BLOCK - 8, 0);
        out.extend(xxh3_64(&out).to_le_bytes());
        out
    }

    /// Reads it from the beginning of a file; `None` if there is none.
    pub fn read(file: &mut File) -> io::Result<Option<Self>> {
        let mut bytes = [0; BLOCK];
        file.seek(SeekFrom::Start(0))?;
        match file.read_exact(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        Ok(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8; BLOCK]) -> Option<Self> {
        let (content, sum) = bytes.split_at(BLOCK - 8);
        if xxh3_64(content).to_le_bytes() != sum {
            return None;
        }
        let mut r = Reader(content);
        let magic = r.u64()?;
        let is_complete = MAGIC.iter().position(|m| *m == magic)? == 0;
        let key = r.take(32)?.try_into().ok()?;
        let mut next = || r.u64();
        let (bytes, index_at, index_bytes) = (next()?, next()?, next()?);
        let (index_sum, written_s, path_len) = (next()?, next()?, next()?);
        let path = String::from_utf8(r.take(usize::try_from(path_len).ok()?)?.to_vec()).ok()?;
        Some(Self { is_complete, key, bytes, index_at, index_bytes, index_sum, written_s, path })
    }

    /// The time that a complete file is given.
    pub fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.written_s)
    }
}

/// What a model's file must have in its header: the model's own key, and what depends on this program.
pub fn key(id: &FileId) -> [u8; 32] {
    let mut key = id.key;
    key.iter_mut().zip(layouts().to_le_bytes()).for_each(|(k, l)| *k ^= l);
    key
}

/// A checksum of packed matrices of all types: it changes with the layout of any. All instruction sets have the same.
fn layouts() -> u64 {
    let mut all = Vec::new();
    for &ty in GgmlType::ALL {
        let (rows, cols) = (ROWS + 1, ty.block_len().max(256) + ty.block_len());
        let bytes = 0..rows * (cols / ty.block_len()) * ty.block_bytes();
        let m = Matrix::new(ty, rows, cols, bytes.map(|i| (i * 31 % 251) as u8).collect());
        let Ok(layout) = Layout::new(ty, rows, cols) else { continue };
        let mut out = vec![0; layout.group_bytes()];
        for group in 0..layout.groups() {
            layout.pack_group(&m, group, &mut out);
            all.extend(xxh3_64(&out).to_le_bytes());
        }
    }
    xxh3_64(&all)
}

/// The bytes of an index.
pub fn index(regions: &[Region]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend((regions.len() as u64).to_le_bytes());
    for r in regions {
        let l = &r.layout;
        for n in [r.name.len(), l.ty().id() as usize, l.rows(), l.cols(), r.count, r.scales, r.at] {
            out.extend((n as u64).to_le_bytes());
        }
        out.extend(r.name.as_bytes());
        r.sums.iter().for_each(|s| out.extend(s.to_le_bytes()));
    }
    out
}

/// Reads the index of a complete file of `bytes` bytes.
pub fn read_index(file: &mut File, header: &Header) -> io::Result<Option<HashMap<String, Region>>> {
    let end = header.index_at.checked_add(header.index_bytes);
    if header.index_bytes > INDEX_MAX || end.is_none_or(|end| end > header.bytes) {
        return Ok(None);
    }
    let mut bytes = vec![0; header.index_bytes as usize];
    file.seek(SeekFrom::Start(header.index_at))?;
    file.read_exact(&mut bytes)?;
    if xxh3_64(&bytes) != header.index_sum {
        return Ok(None);
    }
    Ok(parse_index(&bytes, header.index_at as usize))
}

/// The regions of an index, all of which end before byte `end`.
fn parse_index(bytes: &[u8], end: usize) -> Option<HashMap<String, Region>> {
    let mut r = Reader(bytes);
    let mut all = HashMap::new();
    for _ in 0..r.u64()? {
        let mut next = || r.u64().and_then(|n| usize::try_from(n).ok());
        let (name, ty, rows, cols) = (next()?, next()?, next()?, next()?);
        let (count, scales, at) = (next()?, next()?, next()?);
        let ty = *GgmlType::ALL.iter().find(|t| t.id() as usize == ty)?;
        let name = String::from_utf8(r.take(name)?.to_vec()).ok()?;
        let layout = Layout::new(ty, rows, cols).ok()?;
        let matrix = layout.groups().checked_mul(layout.group_bytes())?;
        let matrices = matrix.checked_mul(count)?;
        let last = scales.checked_mul(4)?.checked_add(matrices)?.checked_add(at)?;
        let padded = layout.groups().checked_mul(ROWS)?.checked_mul(count)?;
        if last > end || matrix == 0 || !at.is_multiple_of(BLOCK) || scales != 0 && scales != padded {
            return None;
        }
        let sums = count.checked_mul(layout.groups())?.checked_add(usize::from(scales > 0))?;
        let sums =
            r.take(sums.checked_mul(8)?)?.as_chunks().0.iter().map(|s| u64::from_le_bytes(*s)).collect();
        all.insert(name.clone(), Region { name, layout, count, scales, at, sums });
    }
    Some(all)
}

/// The length of a file whose content ends at `end`.
pub fn file_bytes(end: usize) -> usize {
    end.next_multiple_of(HUGE_BYTES)
}

/// Reads numbers from untrusted bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(now)
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written_and_damaged_ones_are_none() {
        let header = Header {
            is_complete: true,
            key: [7; 32],
            bytes: 1 << 40,
            index_at: 5,
            index_bytes: 6,
            index_sum: 7,
            written_s: 8,
            path: "/models/ä.gguf".into(),
        };
        let bytes: [u8; BLOCK] = header.bytes().try_into().expect("a block");
        assert_eq!(Header::parse(&bytes), Some(header.clone()));
        for at in [0, 8, 44, 90, BLOCK - 1] {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Header::parse(&wrong), None, "byte {at}");
        }
        let long = Header { path: "ä".repeat(BLOCK), ..header };
        let read = Header::parse(&long.bytes().try_into().expect("a block")).expect("a header");
        assert!(read.path.len() <= PATH_MAX && long.path.starts_with(&read.path));
    }

    #[test]
    fn damaged_indexes_are_none() {
        let layout = Layout::new(GgmlType::Q4_K, 70, 512).expect("a layout");
        let mut region =
            Region { name: "a".into(), layout, count: 3, scales: 0, at: BLOCK, sums: Vec::new() };
        region.sums = (0..region.groups() as u64).collect();
        let end = region.factors().end;
        let bytes = index(&[region.clone(), Region { name: "b".into(), ..region.clone() }]);
        let read = parse_index(&bytes, end).expect("an index");
        assert_eq!(
            (read.len(), read["b"].sums.clone(), read["a"].matrices()),
            (2, region.sums.clone(), region.matrices())
        );
        assert!(
            parse_index(&bytes, end - 1).is_none() && parse_index(&bytes[..bytes.len() - 1], end).is_none()
        );
        // Any number in it may be anything.
        for at in (0..72).step_by(8) {
            for wrong in [u64::MAX, u64::MAX / 8, 1 << 40, 12345] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
                parse_index(&bytes, end);
            }
        }
        assert_eq!(layouts(), layouts());
    }
}
