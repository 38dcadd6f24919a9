//! Server-sent events: the streams of OpenAI's and Anthropic's dialects. Written by the dialects' stream writers; parsed by their
//! stream readers.
//!
//! The format is the WHATWG's (HTML, 9.2). `id` and `retry` are for reconnecting, which no API here supports: they are skipped.

use memchr::{memchr, memchr2};

/// Appends an event to a stream. Line breaks in `data` are kept; `name` must not have any.
pub fn write_event(out: &mut Vec<u8>, name: Option<&str>, data: &[u8]) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    for line in data.split(|b| *b == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// Appends an event whose data is JSON on one line.
pub(crate) fn write_json(out: &mut Vec<u8>, name: Option<&str>, value: &impl serde::Serialize) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    crate::json::write(out, value);
    out.extend_from_slice(b"\n\n");
}

/// Appends a comment, which readers skip, as a keep-alive. `text` is one line.
pub fn write_comment(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b": ");
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event` field; empty if absent.
    pub name: String,
    /// The `data` fields, one per line.
    pub data: String,
}

/// Why a stream cannot be parsed further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event exceeds the limit.
    #[error("an event of the stream is longer than {limit_bytes} bytes")]
    TooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// An event is not UTF-8.
    #[error("a line of the stream is not UTF-8")]
    NotUtf8,
}

/// Default maximum length of an event.
pub const EVENT_BYTES_MAX: usize = 16 << 20;

/// Parses a stream that arrives in arbitrary pieces.
#[derive(Debug)]
pub struct SseDecoder {
    /// Received bytes; those before `read` are consumed.
    buffer: Vec<u8>,
    read: usize,
    /// The buffer has no line end before this position.
    searched: usize,
    /// The line before ended in CR: an LF that follows belongs to it.
    after_cr: bool,
    /// At most the beginning of a byte order mark has arrived.
    at_start: bool,
    name: String,
    data: String,
    has_data: bool,
    limit_bytes: usize,
    failed: Option<SseError>,
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self::with_limit(EVENT_BYTES_MAX)
    }
}

impl SseDecoder {
    /// A decoder with a maximum event length.
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self {
            buffer: Vec::new(),
            read: 0,
            searched: 0,
            after_cr: false,
            at_start: true,
            name: String::new(),
            data: String::new(),
            has_data: false,
            limit_bytes,
            failed: None,
        }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.searched -= self.read;
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete event; `None` until more bytes arrive. An event that is cut off by the end of the stream is dropped.
    ///
    /// # Errors
    /// Once a stream is invalid, the same error at each call.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, SseError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.advance().inspect_err(|e| {
            self.failed = Some(e.clone());
            self.buffer = Vec::new();
            (self.read, self.searched) = (0, 0);
        })
    }

    fn advance(&mut self) -> Result<Option<SseEvent>, SseError> {
        const BOM: &[u8] = "\u{feff}".as_bytes();
        if self.at_start {
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return Ok(None);
            }
            self.at_start = false;
            if self.buffer.starts_with(BOM) {
                self.read = BOM.len();
                self.searched = BOM.len();
            }
        }
        loop {
            if self.after_cr && self.read < self.buffer.len() {
                self.after_cr = false;
                if self.buffer[self.read] == b'\n' {
                    self.read += 1;
                    self.searched = self.searched.max(self.read);
                }
            }
            let Some(offset) = memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                self.check_length(self.buffer.len() - self.read)?;
                return Ok(None);
            };
            let end = self.searched + offset;
            let start = self.read;
            self.check_length(end - start)?;
            self.after_cr = self.buffer[end] == b'\r';
            self.read = end + 1;
            self.searched = self.read;
            if start == end {
                let name = std::mem::take(&mut self.name);
                let data = std::mem::take(&mut self.data);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(SseEvent { name, data }));
                }
            } else {
                self.line(start, end)?;
            }
        }
    }

    fn check_length(&self, line: usize) -> Result<(), SseError> {
        if self.data.len() + line > self.limit_bytes {
            return Err(SseError::TooLong { limit_bytes: self.limit_bytes });
        }
        Ok(())
    }

    /// Parses a non-empty line of the buffer.
    fn line(&mut self, start: usize, end: usize) -> Result<(), SseError> {
        let line = &self.buffer[start..end];
        let (field, value) = match memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        };
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| SseError::NotUtf8);
        match field {
            b"data" => {
                let value = text(value)?;
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            b"event" => {
                self.name.clear();
                self.name.push_str(text(value)?);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_in_pieces(stream: &[u8], cuts: &[usize]) -> Result<Vec<SseEvent>, SseError> {
        let mut decoder = SseDecoder::with_limit(1000);
        let mut out = Vec::new();
        let mut at = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let end = end.clamp(at, stream.len());
            decoder.push(&stream[at..end]);
            at = end;
            while let Some(event) = decoder.next_event()? {
                out.push(event);
            }
        }
        Ok(out)
    }

    fn decode(stream: &str) -> Vec<(String, String)> {
        let events = decode_in_pieces(stream.as_bytes(), &[]).unwrap();
        events.into_iter().map(|e| (e.name, e.data)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn the_standard_is_followed() {
        let cases: &[(&str, &[(&str, &str)])] = &[
            ("data: a\n\n", &[("", "a")]),
            ("event: x\ndata:a\n\ndata: b\n\n", &[("x", "a"), ("", "b")]),
            ("data: a\r\n\r\ndata: b\r\rdata: c\n\n", &[("", "a"), ("", "b"), ("", "c")]),
            ("data: a\ndata\ndata:  b\n\n", &[("", "a\n\n b")]),
            (": comment\n\ndata: a\nid: 7\nretry: 5\nfoo: 1\n\n", &[("", "a")]),
            ("event: only a name\n\ndata: a\n\n", &[("", "a")]),
            ("data\n\n", &[("", "")]),
            ("\u{feff}data: a\n\n\u{feff}data: b\n\n", &[("", "a")]),
            ("data: cut off", &[]),
            ("data: cut off\n", &[]),
            ("event: a\nevent: b\ndata: {\"a\":1}\n\n", &[("b", "{\"a\":1}")]),
        ];
        for (stream, expected) in cases {
            assert_eq!(decode(stream), pairs(expected), "{stream:?}");
        }
    }

    #[test]
    fn the_length_of_lines_and_events_is_bounded() {
        let too_long = Err(SseError::TooLong { limit_bytes: 1000 });
        for stream in [vec![b'x'; 1001], b"data: abcdefgh\n".repeat(200), vec![b':'; 5000]] {
            assert_eq!(decode_in_pieces(&stream, &[]), too_long);
            assert_eq!(decode_in_pieces(&stream, &(0..5000).collect::<Vec<_>>()), too_long);
        }
        let mut d = SseDecoder::with_limit(3);
        d.push(b"data");
        assert!(d.next_event().is_err());
        d.push(b"\n\n");
        assert!(d.next_event().is_err(), "a broken stream stays broken");
        let mut long = SseDecoder::with_limit(1000);
        for _ in 0..1000 {
            long.push(b"data: abcdefgh\n\n");
            assert!(long.next_event().unwrap().is_some(), "many short events are not one long one");
            assert!(long.buffer.capacity() < 100);
        }
    }

    #[test]
    fn invalid_utf_8_is_refused() {
        assert_eq!(decode_in_pieces(b"data: \xff\n\n", &[]), Err(SseError::NotUtf8));
        assert_eq!(decode_in_pieces(b"junk: \xff\ndata: a\n\n", &[]).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn results_do_not_depend_on_chunks(
            pieces in prop::collection::vec(
                prop::sample::select(vec!["data: a", "data:é", "event: n", ":c", "\n", "\r", "\r\n", "\n\n", "\u{feff}", "x", ":"]),
                0..40,
            ),
            mut cuts in prop::collection::vec(0usize..200, 0..20),
        ) {
            cuts.sort_unstable();
            let stream = pieces.concat();
            let whole = decode_in_pieces(stream.as_bytes(), &[]);
            prop_assert_eq!(&decode_in_pieces(stream.as_bytes(), &cuts), &whole);
            let every: Vec<usize> = (0..stream.len()).collect();
            prop_assert_eq!(&decode_in_pieces(stream.as_bytes(), &every), &whole);
        }

        #[test]
        fn written_values_parse_back(
            events in prop::collection::vec(("[a-z_.]{0,8}", "[^\r]{0,30}"), 0..8),
            mut cuts in prop::collection::vec(0usize..300, 0..10),
        ) {
            cuts.sort_unstable();
            let mut stream = Vec::new();
            for (name, data) in &events {
                write_comment(&mut stream, "keep-alive");
                write_event(&mut stream, (!name.is_empty()).then_some(name.as_str()), data.as_bytes());
            }
            let got = decode_in_pieces(&stream, &cuts).unwrap();
            prop_assert_eq!(got.into_iter().map(|e| (e.name, e.data)).collect::<Vec<_>>(), events);
        }

        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_in_pieces(&bytes, &[3, 50, 51]);
        }
    }
}
