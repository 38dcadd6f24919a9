//! Opens a model by name, downloading it if necessary.

use std::path::{Path, PathBuf};

use octet_hub::others::{self, Broken, Other};
use octet_hub::{Hub, Reference, catalog};

use crate::embedded;
use crate::progress::Pull;
use crate::settings::{self, Settings};

/// Minimum similarity of names to be suggested as a correction.
const ALIKE: f64 = 0.6;
/// Minimum length of a beginning of a name to be suggested as a correction.
const PREFIX_BYTES_MIN: usize = 3;

/// Models of other programs on this machine, Ollama's and LM Studio's, and those that cannot be used.
pub fn others() -> (Vec<Other>, Vec<Broken>) {
    let (mut all, broken) = others::ollama(&settings::ollama_folders());
    all.extend(others::lm_studio(&settings::lm_studio_folders()));
    (all, broken)
}

/// The model of another program that has this name; `None` for other names.
pub fn other(name: &str) -> anyhow::Result<Option<Other>> {
    if !is_other_programs(name) {
        return Ok(None);
    }
    let prefix = name.split_once(':').map_or(name, |(prefix, _)| prefix);
    let (all, broken) = others();
    let all: Vec<Other> = all.into_iter().filter(|m| m.name.starts_with(prefix)).collect();
    others::find(&all, &broken, name).map(Some).map_err(anyhow::Error::msg)
}

/// Whether a name is that of another program's model, which is read in place.
pub fn is_other_programs(name: &str) -> bool {
    [others::OLLAMA, others::LM_STUDIO].iter().any(|prefix| name.starts_with(prefix))
}

/// Parses a model's name; suggests a similar one if it is unknown.
pub fn reference(name: &str) -> anyhow::Result<Reference> {
    if let Some(other) = other(name)? {
        return Ok(Reference::Path(other.path));
    }
    Reference::parse(name).map_err(|e| match suggestion(name) {
        // The list of all names would hide it.
        Some(known) => anyhow::anyhow!("'{name}': unknown model; did you mean '{known}'?\n\n  {e}"),
        None => e.into(),
    })
}

/// The known name that an unknown one probably stands for: it begins with the unknown one, or is similar to it.
fn suggestion(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    let known = || catalog::CATALOG.iter().map(|k| k.name).chain([embedded::NAME]);
    if name.len() >= PREFIX_BYTES_MIN
        && let Some(longer) = known().find(|k| k.starts_with(&name))
    {
        return Some(longer);
    }
    let like = |known: &'static str| (strsim::normalized_damerau_levenshtein(&name, known), known);
    let nearest = known().map(like).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.filter(|(alike, _)| *alike >= ALIKE).map(|(_, known)| known)
}

/// Whether `name` is a word that is neither a model's name nor similar to one.
pub fn is_other_word(name: &str) -> bool {
    let is_word = !embedded::is(name) && !is_other_programs(name) && !name.contains(['/', '\\', ':']);
    is_word && Reference::parse(name).is_err() && suggestion(name).is_none()
}

/// The location of a model.
#[derive(Debug, Clone)]
pub enum Place {
    /// Built in.
    Inside,
    /// A local file or folder.
    Path(PathBuf),
}

impl Place {
    /// Opens the model.
    pub fn open(&self) -> Result<octet_weights::Model, octet_weights::Error> {
        match self {
            Self::Inside => embedded::open(),
            Self::Path(path) => octet_weights::Model::open(path),
        }
    }
}

/// Fails if `name` cannot be a model, or is a path that does not exist. Downloads nothing.
pub fn check(name: &str) -> anyhow::Result<()> {
    if embedded::is(name) {
        return Ok(());
    }
    match reference(name)? {
        Reference::Path(path) => exists(&path),
        _ => Ok(()),
    }
}

fn exists(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        path.exists(),
        "{}: no such file or directory; `octet list` shows the models on this machine",
        path.display()
    );
    Ok(())
}

/// The model's location, after downloading it if necessary.
pub fn locate(name: &str, settings: &Settings) -> anyhow::Result<Place> {
    if embedded::is(name) {
        return Ok(Place::Inside);
    }
    let reference = reference(name)?;
    if let Reference::Path(path) = &reference {
        exists(path)?;
        return Ok(Place::Path(path.clone()));
    }
    Ok(Place::Path(Hub::new(settings.hub()?).ensure(&reference, &Pull::new())?))
}

/// Opens a model, after downloading it if necessary.
pub fn open(name: &str, settings: &Settings) -> anyhow::Result<octet_weights::Model> {
    locate(name, settings)?.open().map_err(|e| {
        // The user's own files are not downloaded again.
        let again = match reference(name) {
            Ok(Reference::Path(_)) | Err(_) => String::new(),
            Ok(_) => format!(" (`octet rm {name}`, then `octet pull {name}`, fetches it again)"),
        };
        anyhow::Error::new(e).context(format!("'{name}' cannot be opened{again}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_or_similar_name_is_suggested() {
        assert_eq!(suggestion("qwen3.6:35b"), Some("qwen3.6:35b-a3b"));
        assert_eq!(suggestion("smollm2:136m"), Some("smollm2:135m"));
        assert_eq!(suggestion("Smol"), Some("smollm2:135m"));
        assert_eq!(suggestion("foxx"), Some("fox"));
        assert_eq!(suggestion("hello"), None);
        assert!(is_other_word("hello") && !is_other_word("fox") && !is_other_word("foxx"));
        assert!(!is_other_word("user/repo") && !is_other_word("./hello"));
    }
}
