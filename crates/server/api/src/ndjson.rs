//! Newline-delimited JSON: the streams of Ollama's dialect. Written by its stream writers; parsed from providers.

use memchr::memchr;

/// Appends a line. `json` must not contain a line break; serde_json writes none.
pub fn write_line(out: &mut Vec<u8>, json: &[u8]) {
    out.extend_from_slice(json);
    out.push(b'\n');
}

/// A line exceeds the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a line of the stream is longer than {limit_bytes} bytes")]
pub struct LineTooLong {
    /// The limit.
    pub limit_bytes: usize,
}

/// Splits a stream, received in arbitrary pieces, into lines. A CR before the line break and blank lines are dropped.
#[derive(Debug)]
pub struct LineDecoder {
    buffer: Vec<u8>,
    read: usize,
    searched: usize,
    limit_bytes: usize,
    failed: bool,
}

impl Default for LineDecoder {
    fn default() -> Self {
        Self::with_limit(crate::sse::EVENT_BYTES_MAX)
    }
}

impl LineDecoder {
    /// A decoder with a maximum line length.
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self { buffer: Vec::new(), read: 0, searched: 0, limit_bytes, failed: false }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed {
            return;
        }
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.searched -= self.read;
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line; `None` until more bytes arrive.
    ///
    /// # Errors
    /// If a line is too long, from then on.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        loop {
            let found = memchr(b'\n', &self.buffer[self.searched..]).map(|i| self.searched + i);
            let end = found.unwrap_or(self.buffer.len());
            if self.failed || end - self.read > self.limit_bytes {
                self.failed = true;
                self.buffer = Vec::new();
                (self.read, self.searched) = (0, 0);
                return Err(LineTooLong { limit_bytes: self.limit_bytes });
            }
            if found.is_none() {
                self.searched = end;
                return Ok(None);
            }
            let start = self.read;
            self.read = end + 1;
            self.searched = self.read;
            if !trimmed(&self.buffer[start..end]).is_empty() {
                return Ok(Some(trimmed(&self.buffer[start..end])));
            }
        }
    }

    /// The rest at the end of the stream: a last line without a line break, if not blank.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        let rest = trimmed(&self.buffer[self.read..]).to_vec();
        self.buffer.clear();
        (self.read, self.searched) = (0, 0);
        (!rest.is_empty()).then_some(rest)
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(stream: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, LineTooLong> {
        let mut decoder = LineDecoder::with_limit(100);
        let mut out = Vec::new();
        let mut at = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let end = end.clamp(at, stream.len());
            decoder.push(&stream[at..end]);
            at = end;
            while let Some(line) = decoder.next_line()? {
                out.push(line.to_vec());
            }
        }
        out.extend(decoder.finish());
        Ok(out)
    }

    #[test]
    fn lines_are_split() {
        let got = decode(b"{\"a\":1}\r\n\n  \n{}\n[1]", &[]).unwrap();
        assert_eq!(got, [&b"{\"a\":1}"[..], b"{}", b"[1]"]);
        assert!(decode(&[b'x'; 101], &[]).is_err());
        let mut d = LineDecoder::with_limit(3);
        d.push(b"abcd");
        assert!(d.next_line().is_err());
        d.push(b"\n");
        assert!(d.next_line().is_err());
    }

    proptest! {
        #[test]
        fn results_do_not_depend_on_chunks(
            stream in "[ab{}\r\n]{0,80}",
            mut cuts in prop::collection::vec(0usize..100, 0..20),
        ) {
            cuts.sort_unstable();
            prop_assert_eq!(decode(stream.as_bytes(), &cuts), decode(stream.as_bytes(), &[]));
        }
    }
}
