//! From a model's name to the open file: looks it up, fetches it if need be. Called by every command that takes a model.

use std::path::PathBuf;

use octet_engine::engine::{Engine, Options};
use octet_engine::report::Report;
use octet_engine::score::Scorer;
use octet_hub::{Hub, Reference, catalog};

use crate::config::{EngineArgs, Settings};
use crate::inside;
use crate::progress::{Bar, Pull};
use crate::stderr::note;

/// Parts of a name that are alike enough to be a slip of the finger.
const ALIKE: f64 = 0.6;

/// Understands a model's name; says which is meant where it is nearly one.
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

/// Where a model is.
#[derive(Debug, Clone)]
pub enum Place {
    /// In the program itself.
    Inside,
    /// A file or folder on this machine.
    Path(PathBuf),
}

impl Place {
    /// Opens the model.
    pub fn open(&self) -> Result<octet_weights::Model, octet_weights::Error> {
        match self {
            Self::Inside => inside::open(),
            Self::Path(path) => octet_weights::Model::open(path),
        }
    }
}

/// Where the model lies, after it has been fetched if it was not here.
pub fn locate(name: &str, settings: &Settings) -> anyhow::Result<Place> {
    if inside::is(name) {
        return Ok(Place::Inside);
    }
    let reference = reference(name)?;
    if let Reference::Path(path) = &reference {
        anyhow::ensure!(
            path.exists(),
            "{}: no such file or directory; `octet list` shows the models on this machine",
            path.display()
        );
        return Ok(Place::Path(path.clone()));
    }
    Ok(Place::Path(Hub::new(settings.hub()?).ensure(&reference, &Pull::new())?))
}

/// Opens a model, after it has been fetched if it was not here.
pub fn open(name: &str, settings: &Settings) -> anyhow::Result<octet_weights::Model> {
    locate(name, settings)?.open().map_err(|e| {
        // A file of the user's own is not ours to fetch again.
        let again = match reference(name) {
            Ok(Reference::Path(_)) | Err(_) => String::new(),
            Ok(_) => format!(" (`octet rm {name}`, then `octet pull {name}`, fetches it again)"),
        };
        anyhow::Error::new(e).context(format!("'{name}' cannot be opened{again}"))
    })
}

/// Loads a model to generate with it, if it fits.
pub fn load(model: &octet_weights::Model, args: &EngineArgs, settings: &Settings) -> anyhow::Result<Engine> {
    let mut options = args.options(settings)?;
    check(model, args, std::slice::from_mut(&mut options))?;
    let bar = Bar::bytes("loading");
    Ok(Engine::open(model, &options, &mut |done, all| bar.update(done, all))?)
}

/// Loads a model once for each of `variants` to score texts with them, if they fit together.
pub fn load_to_score(
    model: &octet_weights::Model,
    args: &EngineArgs,
    variants: &mut [Options],
) -> anyhow::Result<Vec<Scorer>> {
    check(model, args, variants)?;
    let bar = Bar::bytes("loading");
    let mut open = |options| Scorer::open(model, options, &mut |done, all| bar.update(done, all));
    Ok(variants.iter().map(&mut open).collect::<Result<_, _>>()?)
}

/// Chooses the devices, and fails where what is to be loaded does not fit.
fn check(model: &octet_weights::Model, args: &EngineArgs, variants: &mut [Options]) -> anyhow::Result<()> {
    let report = Report::new(model)?;
    let made_for = report.config.context_length;
    let context = variants.first().map_or(0, |options| options.context_for(made_for));
    if context > made_for {
        note!("note: the model was made for {made_for} tokens of context; {context} may be too much for it");
    }
    for options in &mut *variants {
        args.device.choose(options, &report)?;
    }
    // a device has room or says so itself
    let variants = variants.iter().filter(|o| o.device.is_none());
    let load = |o: &Options| Ok((o.limits(made_for, report.state_bytes())?, o.cpu.exact));
    let loads = variants.map(load).collect::<anyhow::Result<Vec<_>>>()?;
    if !args.memory.no_memory_check {
        crate::memory::check(&report, &loads, context, "a smaller --ctx-size")?;
    }
    Ok(())
}
