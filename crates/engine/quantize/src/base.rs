//! A base model's probabilities in a file, which quantised models are compared with: llama-perplexity's format of `--kl-divergence-base`.
//!
//! `_logits_`, then u32 window, u32 vocabulary, u32 windows, the tokens of all windows (i32), and for each predicted token of the second
//! half of each window a row: f32 step, f32 smallest log-probability, and a u16 for each token of the vocabulary (one more where their
//! number is odd): `log p = step * q + smallest`, with 0 for everything below 16 nats under the largest.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"_logits_";
/// How far below the most probable token probabilities are told apart, in nats.
const DEPTH: f32 = 16.0;
const MAX_VOCAB: usize = 1 << 22;
const MAX_WINDOW: usize = 1 << 24;

/// What all rows have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// The tokens of all windows, one window after the other.
    pub tokens: Vec<u32>,
}

impl Head {
    /// The first position of a window whose prediction counts.
    pub fn first(&self) -> usize {
        self.window / 2
    }

    /// Predictions of a window.
    pub fn rows(&self) -> usize {
        self.window - 1 - self.first()
    }

    fn row_bytes(&self) -> usize {
        2 * (self.vocab.next_multiple_of(2) + 4)
    }
}

/// Writes rows.
pub struct Writer<W: Write = File> {
    out: BufWriter<W>,
    row: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes what comes before the rows.
    ///
    /// # Errors
    /// Of writing.
    pub fn new(file: W, head: &Head) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(MAGIC)?;
        for n in [head.window, head.vocab, head.tokens.len() / head.window] {
            out.write_all(&(n as u32).to_le_bytes())?;
        }
        for t in &head.tokens {
            out.write_all(&t.to_le_bytes())?;
        }
        Ok(Self { out, row: vec![0; head.row_bytes()] })
    }

    /// Writes the row of these logits.
    ///
    /// # Errors
    /// Of writing.
    pub fn put(&mut self, logits: &[f32]) -> io::Result<()> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = logits.iter().copied().fold(f32::INFINITY, f32::min).max(largest - DEPTH);
        let sum: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
        let smallest = f64::from(least - largest) - sum.ln();
        let step = (largest - least) / 65535.0;
        self.row[..4].copy_from_slice(&step.to_le_bytes());
        self.row[4..8].copy_from_slice(&(smallest as f32).to_le_bytes());
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        for (q, l) in self.row[8..].as_chunks_mut::<2>().0.iter_mut().zip(logits) {
            *q = (((l - least) * inverse).round_ties_even().clamp(0.0, 65535.0) as u16).to_le_bytes();
        }
        self.out.write_all(&self.row)
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// Of writing.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads rows.
pub struct Reader<R = File> {
    file: BufReader<R>,
    /// What all rows have in common.
    pub head: Head,
    rows_at: u64,
    row: Vec<u8>,
}

impl Reader {
    /// Whether a file begins like one.
    pub fn is(path: &Path) -> bool {
        let mut magic = [0; 8];
        File::open(path).is_ok_and(|mut f| f.read_exact(&mut magic).is_ok()) && magic == *MAGIC
    }
}

/// The error of a file that is none.
fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R: Read + Seek> Reader<R> {
    /// Reads what comes before the rows.
    ///
    /// # Errors
    /// Of reading, and what is wrong with the file.
    pub fn new(file: R) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(1 << 20, file);
        let bytes = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut magic = [0; 8];
        file.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(damaged("is no file of probabilities".into()));
        }
        let mut int = || {
            let mut b = [0; 4];
            file.read_exact(&mut b).map(|()| u32::from_le_bytes(b))
        };
        let [window, vocab, windows] = [int()? as usize, int()? as usize, int()? as usize];
        if !(2..=MAX_WINDOW).contains(&window) || !(1..=MAX_VOCAB).contains(&vocab) || windows == 0 {
            return Err(damaged(format!(
                "is damaged: windows of {window} tokens and a vocabulary of {vocab}"
            )));
        }
        let mut head = Head { window, vocab, tokens: Vec::new() };
        let rows_at = 20 + 4 * (window as u64) * windows as u64;
        let rows = (windows as u64).saturating_mul(head.rows() as u64);
        let needed = rows.saturating_mul(head.row_bytes() as u64).saturating_add(rows_at);
        if bytes < needed {
            return Err(damaged(format!("is cut off: {bytes} of {needed} bytes")));
        }
        let mut tokens = vec![0; 4 * window * windows];
        file.read_exact(&mut tokens)?;
        head.tokens = tokens.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        if head.tokens.iter().any(|t| (*t as usize) >= vocab) {
            return Err(damaged("is damaged: a token is not in the vocabulary".into()));
        }
        let row = vec![0; head.row_bytes()];
        Ok(Self { file, head, rows_at, row })
    }

    /// Goes back to the first row.
    ///
    /// # Errors
    /// Of reading.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.rows_at)).map(|_| ())
    }

    /// The next row, as log-probabilities; `out` has one for each token of the vocabulary.
    ///
    /// # Errors
    /// Of reading.
    pub fn read(&mut self, out: &mut [f32]) -> io::Result<()> {
        self.file.read_exact(&mut self.row)?;
        let float = |at: usize| {
            f32::from_le_bytes([self.row[at], self.row[at + 1], self.row[at + 2], self.row[at + 3]])
        };
        let (step, smallest) = (float(0), float(4));
        for (out, q) in out.iter_mut().zip(self.row[8..].as_chunks::<2>().0) {
            *out = step * f32::from(u16::from_le_bytes(*q)) + smallest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn rows_come_back() {
        let head = Head { window: 4, vocab: 5, tokens: vec![0, 1, 2, 3, 4, 3, 2, 1] };
        let mut bytes = Vec::new();
        let mut w = Writer::new(&mut bytes, &head).unwrap();
        let rows = [[1.0f32, 2.0, -3.0, 0.5, -40.0], [0.0; 5]];
        rows.iter().for_each(|r| w.put(r).unwrap());
        w.finish().unwrap();
        let mut r = Reader::new(Cursor::new(&bytes)).unwrap();
        assert_eq!(r.head, head);
        r.rewind().unwrap();
        for row in rows {
            let mut out = [0.0; 5];
            r.read(&mut out).unwrap();
            let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
            for (l, p) in row.iter().zip(out).filter(|(l, _)| **l > -14.0) {
                assert!((f64::from(*l) - sum.ln() - f64::from(p)).abs() < 2e-4, "{l} {p}");
            }
            assert!((out.iter().map(|p| f64::from(*p).exp()).sum::<f64>() - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        for bytes in [
            &b"_logits_"[..],
            b"_logits_\x04\0\0\0\x05\0\0\0\x01\0\0\0",
            b"_logits_\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"something",
            b"_logits_\xff\xff\xff\0\xff\xff\x3f\0\xff\xff\xff\xff",
        ] {
            assert!(Reader::new(Cursor::new(bytes)).is_err(), "{bytes:?}");
        }
    }
}
