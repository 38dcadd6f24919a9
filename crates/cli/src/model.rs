//! Opens a model by name, downloading it if necessary. Called by every command that takes a model.

use std::path::{Path, PathBuf};

use octet_hub::{Hub, Reference, catalog};

use crate::embedded;
use crate::progress::Pull;
use crate::settings::Settings;

/// Minimum similarity of names to be suggested as a correction.
const ALIKE: f64 = 0.6;

/// Parses a model's name; suggests a similar one if it is unknown.
pub fn reference(name: &str) -> anyhow::Result<Reference> {
    Reference::parse(name).map_err(|e| {
        let like = |known: &str| strsim::normalized_damerau_levenshtein(&name.to_ascii_lowercase(), known);
        let nearest =
            catalog::CATALOG.iter().map(|k| (like(k.name), k.name)).max_by(|a, b| a.0.total_cmp(&b.0));
        match nearest {
            Some((alike, known)) if alike >= ALIKE => {
                anyhow::anyhow!("{e}\n\n  did you mean '{known}'?")
            }
            _ => e.into(),
        }
    })
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
