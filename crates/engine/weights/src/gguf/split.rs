//! Split GGUF files, `NAME-00001-of-00003.gguf`: finds the other parts and checks that they belong together.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::read::{self, Part};
use crate::map::Mapped;
use crate::{Error, Metadata};

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// A set of parts: where they lie, which one was given (from 0), and how many there are.
pub(super) struct Set {
    dir: PathBuf,
    stem: String,
    given: u32,
    count: u32,
}

impl Set {
    fn path(&self, index: u32) -> PathBuf {
        self.dir.join(format!("{}-{:05}-of-{:05}.gguf", self.stem, index + 1, self.count))
    }
}

/// Number of parts that a file says it is one of; 1 when it says nothing.
pub(super) fn count(metadata: &Metadata) -> Result<u32, Error> {
    Ok(metadata.opt_u32(COUNT_KEY)?.unwrap_or(1))
}

/// Splits `NAME-00002-of-00003.gguf` into `("NAME", 2, 3)`.
pub(crate) fn split_name(file_name: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |s: &str| -> Option<u32> {
        (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok())?
    };
    Some((stem, number(no)?, number(total)?))
}

/// The set that the file at `path` is a part of, or `None` for a file that is whole.
pub(super) fn parts_of(path: &Path, metadata: &Metadata) -> Result<Option<Set>, Error> {
    let count = count(metadata)?;
    if count <= 1 {
        return Ok(None);
    }
    let given = metadata.u32(NO_KEY)?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    match split_name(name) {
        Some((stem, no, total)) if total == count && no.checked_sub(1) == Some(given) => {
            let dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
            Ok(Some(Set { dir, stem: stem.into(), given, count }))
        }
        _ => {
            let no = u64::from(given) + 1;
            let what = format!(
                "is part {no} of {count} by its metadata; its name must then end in -{no:05}-of-{count:05}.gguf, so \
                 that the other parts can be found beside it"
            );
            Err(Error::format(metadata.file(), what))
        }
    }
}

/// Opens every part of the set; `first` is the one that was given.
pub(super) fn open_all(set: Set, first: (Mapped, Part)) -> Result<Vec<(Mapped, Part)>, Error> {
    let mut given = Some(first);
    let mut parts: Vec<(Mapped, Part)> = Vec::new();
    for index in 0..set.count {
        let part = match given.take_if(|_| index == set.given) {
            Some(part) => part,
            None => open_part(&set, index)?,
        };
        parts.push(part);
    }
    same_set(&set, &parts)?;
    Ok(parts)
}

fn open_part(set: &Set, index: u32) -> Result<(Mapped, Part), Error> {
    let path = set.path(index);
    if !path.exists() {
        let what = format!(
            "is missing: it is part {} of the {} that {} belongs to; put all parts into one directory",
            index + 1,
            set.count,
            set.path(set.given).display()
        );
        return Err(Error::format(&path.display().to_string(), what));
    }
    let file = Mapped::open(&path)?;
    let part = read::parse(&file.name, &file.bytes)?;
    Ok((file, part))
}

/// Every part must say that it is where it is, and together they must hold all tensors, each once.
fn same_set(set: &Set, parts: &[(Mapped, Part)]) -> Result<(), Error> {
    let mut seen = HashMap::new();
    for (index, (file, part)) in parts.iter().enumerate() {
        let (no, count) = (part.metadata.u32(NO_KEY)?, count(&part.metadata)?);
        if no as usize != index || count != set.count {
            let what = format!(
                "declares part {no} of {count} (from 0); by the file's name it is {index} of {}",
                set.count
            );
            return Err(Error::key(&file.name, NO_KEY, what));
        }
        for (info, _) in &part.tensors {
            if let Some(other) = seen.insert(info.name.as_str(), &file.name) {
                let what = format!("occurs in {other}, too; the parts do not belong together");
                return Err(Error::tensor(&file.name, &info.name, what));
            }
        }
    }
    for (file, part) in parts {
        if let Some(stated) = part.metadata.opt_u32(TENSORS_KEY)?
            && stated as usize != seen.len()
        {
            let what = format!("is {stated}, but the {} parts hold {} tensors", set.count, seen.len());
            return Err(Error::key(&file.name, TENSORS_KEY, what));
        }
    }
    Ok(())
}
