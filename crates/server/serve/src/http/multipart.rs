//! Finds the field `model` in a form (`multipart/form-data`, RFC 7578) while it arrives. Used for requests that are passed through:
//! they are sent on as soon as the model is known, and the rest is checked so that no second `model` follows.

use std::ops::Range;

use memchr::memmem;

/// Maximum size of a part's headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a model name.
const NAME_BYTES_MAX: usize = 1 << 10;

/// The boundary in a content type; `None` if it is not a form.
pub fn boundary(content_type: &str) -> Option<String> {
    let mut parts = content_type.split(';');
    let kind = parts.next()?.trim();
    if !kind.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let named = |part: &str| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_string())
    };
    parts.find_map(named).filter(|b| !b.is_empty() && b.len() <= 70)
}

/// The state of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first boundary.
    Start,
    /// After a boundary.
    Boundary,
    Head,
    /// In a part's content; for `model`, with its offset in the form.
    Content(Option<u64>),
    /// After the last part.
    End,
}

/// An incremental reader of a form.
#[derive(Debug)]
pub struct ModelFinder {
    /// The delimiter before each part but the first.
    delimiter: Vec<u8>,
    at: At,
    /// Bytes not yet processed; they begin at `offset` in the form.
    buffer: Vec<u8>,
    offset: u64,
    found: bool,
}

impl ModelFinder {
    /// A reader of a form with this boundary.
    pub fn new(boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Self { delimiter, at: At::Start, buffer: Vec::new(), offset: 0, found: false }
    }

    /// Processes the next bytes. Returns the position of the model's name in the form when it is known.
    ///
    /// # Errors
    /// If it is not a valid form, or has a second `model`. The text is for the client.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Range<u64>>, String> {
        self.buffer.extend_from_slice(bytes);
        let mut found = None;
        while let Some(done) = self.step(&mut found)? {
            self.buffer.drain(..done);
            self.offset += done as u64;
        }
        Ok(found)
    }

    /// Whether the last part has ended.
    pub fn is_over(&self) -> bool {
        self.at == At::End
    }

    /// How many bytes of the buffer are processed; `None` if more are needed.
    fn step(&mut self, found: &mut Option<Range<u64>>) -> Result<Option<usize>, String> {
        match self.at {
            At::Start => {
                let first = &self.delimiter[2..];
                let begins = self.buffer.len().min(first.len());
                if self.buffer[..begins] != first[..begins] {
                    return Err("the form does not begin with its boundary".into());
                }
                if self.buffer.len() < first.len() {
                    return Ok(None);
                }
                self.at = At::Boundary;
                Ok(Some(first.len()))
            }
            At::Boundary => match self.buffer.get(..2) {
                None => Ok(None),
                Some(b"--") => {
                    self.at = At::End;
                    Ok(Some(2))
                }
                Some(b"\r\n") => {
                    self.at = At::Head;
                    Ok(Some(2))
                }
                Some(_) => Err("a boundary of the form is not the end of a line".into()),
            },
            At::Head => self.head(),
            At::Content(model) => Ok(self.content(model, found)?),
            At::End => Ok((!self.buffer.is_empty()).then_some(self.buffer.len())),
        }
    }

    fn head(&mut self) -> Result<Option<usize>, String> {
        let (length, done) = match memmem::find(&self.buffer, b"\r\n\r\n") {
            _ if self.buffer.starts_with(b"\r\n") => (0, 2),
            Some(end) => (end, end + 4),
            None if self.buffer.len() > HEAD_BYTES_MAX => {
                return Err(format!("a part of the form has headers of more than {HEAD_BYTES_MAX} bytes"));
            }
            None => return Ok(None),
        };
        let is_model = is_model(&self.buffer[..length])?;
        if is_model && std::mem::replace(&mut self.found, true) {
            return Err("the form has two fields 'model'".into());
        }
        self.at = At::Content(is_model.then_some(self.offset + done as u64));
        Ok(Some(done))
    }

    fn content(
        &mut self,
        model: Option<u64>,
        found: &mut Option<Range<u64>>,
    ) -> Result<Option<usize>, String> {
        match memmem::find(&self.buffer, &self.delimiter) {
            Some(end) => {
                if let Some(start) = model {
                    *found = Some(start..self.offset + end as u64);
                }
                self.at = At::Boundary;
                Ok(Some(end + self.delimiter.len()))
            }
            None if model.is_some() && self.buffer.len() > NAME_BYTES_MAX => {
                Err(format!("'model' is longer than {NAME_BYTES_MAX} bytes"))
            }
            None if model.is_some() => Ok(None),
            // The end may be the beginning of a delimiter.
            None => {
                let done = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                Ok((done > 0).then_some(done))
            }
        }
    }
}

/// Whether the headers of a part name it `model`, in any way that a server might read them.
fn is_model(head: &[u8]) -> Result<bool, String> {
    let text = std::str::from_utf8(head).map_err(|_| "the headers of a part are not UTF-8")?;
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let Some(disposition) = disposition else { return Ok(false) };
    let mut names = Vec::new();
    for parameter in parameters(disposition) {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        let name = name.trim().to_ascii_lowercase();
        if name == "name*" {
            return Err("a part of the form has a name in another character set".into());
        }
        if name == "name" {
            names.push(value.trim().trim_matches('"').replace('\\', ""));
        }
    }
    match names.as_slice() {
        [name] => Ok(name == "model"),
        [] => Ok(false),
        _ => Err("a part of the form has two names".into()),
    }
}

/// The parameters of a header, split at semicolons outside quotes.
fn parameters(value: &str) -> Vec<&str> {
    let (mut out, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (i, c) in value.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => {
                out.push(&value[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&value[start..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a; name=model.wav\"\r\n\
        Content-Type: audio/wav\r\n\r\nRIFF\r\n--X\r\n--XY\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\
        whisper-1\r\n--XX\r\ncontent-disposition:form-data;name=prompt\r\n\r\nname=\"model\"\r\n--XX--\r\n";

    fn find(form: &[u8], piece: usize) -> Result<(Option<Range<u64>>, bool), String> {
        let mut finder = ModelFinder::new("XX");
        let mut found = None;
        for piece in form.chunks(piece) {
            found = finder.push(piece)?.or(found);
        }
        Ok((found, finder.is_over()))
    }

    #[test]
    fn the_model_is_found_however_the_form_is_cut() {
        for piece in 1..FORM.len() {
            let (found, over) = find(FORM.as_bytes(), piece).unwrap_or_else(|e| panic!("{piece}: {e}"));
            let found = found.expect("there is one");
            assert_eq!(&FORM[found.start as usize..found.end as usize], "whisper-1", "{piece}");
            assert!(over, "{piece}");
        }
    }

    #[test]
    fn what_two_servers_might_read_differently_is_refused() {
        let second = |head: &str| FORM.replace("content-disposition:form-data;name=prompt", head);
        for (form, expected) in [
            (second("Content-Disposition: form-data; name=model"), "two fields 'model'"),
            (second("Content-Disposition: form-data; name=\"mo\\del\""), "two fields 'model'"),
            (second("Content-Disposition: form-data; name=a; name=model"), "two names"),
            (second("Content-Disposition: form-data; name*=UTF-8''model"), "character set"),
            (FORM.replace("--XX\r\ncontent", "--XX \r\ncontent"), "end of a line"),
            (format!("x{FORM}"), "boundary"),
            (FORM.replace("whisper-1", &"w".repeat(5000)), "longer than"),
            (FORM.replace("audio/wav", &"w".repeat(50000)), "headers of more"),
        ] {
            let e = find(form.as_bytes(), 7).expect_err(expected);
            assert!(e.contains(expected), "{e}");
        }
    }

    #[test]
    fn boundaries_are_read_off_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("Multipart/Form-Data; charset=x; Boundary=\"a b\"").as_deref(), Some("a b"));
        for other in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/mixed; boundary=a",
        ] {
            assert_eq!(boundary(other), None, "{other}");
        }
    }
}
