//! Checks that the prerouters of a configuration match the dimensions of their embedding models.

use octet_config::{Config, Local, Target, printable};
use octet_engine::report::Report;
use octet_hub::{Hub, Reference};

use super::load::model_name;
use crate::embedded;
use crate::model::{Place, reference};
use crate::settings::Settings;

/// Refuses a prerouter with another number of weights than its model's embeddings have numbers. A model that is not on this machine yet, or
/// cannot be opened, is nothing to compare with: that is found elsewhere.
pub fn check(config: &Config, settings: &Settings) -> anyhow::Result<()> {
    for cascade in &config.cascades {
        let Some(prerouter) = &cascade.prerouter else { continue };
        let by = prerouter.embed.as_ref().unwrap_or(&cascade.fast);
        let Some(width) = local(config, by).and_then(|local| width(local, settings)) else { continue };
        anyhow::ensure!(
            width == prerouter.weights.len(),
            "{}: the cascade '{}': its prerouter has {} weights, and the embeddings of '{}' have {width} numbers: \
             `octet route calibrate --prerouter FILE` makes one for this model",
            cascade.span,
            printable(&cascade.name),
            prerouter.weights.len(),
            printable(by)
        );
    }
    Ok(())
}

/// The model in this process that a name refers to.
fn local<'a>(config: &'a Config, name: &str) -> Option<&'a Local> {
    let alias = config.router.aliases.iter().find(|a| a.name == name);
    let name = alias.map_or(name, |a| a.group.as_str());
    config.deployments.iter().filter(|d| d.group.as_str() == name).find_map(|d| match &d.target {
        Target::Local(local) => Some(local),
        _ => None,
    })
}

/// The length of its embeddings; nothing is downloaded for that.
fn width(local: &Local, settings: &Settings) -> Option<usize> {
    let name = model_name(&local.model, &local.base).ok()?;
    let place = if embedded::is(&name) {
        Place::Inside
    } else {
        match reference(&name).ok()? {
            Reference::Path(path) => Place::Path(path),
            other => Place::Path(Hub::new(settings.hub().ok()?).resolve(&other).ok()??),
        }
    };
    // To open a pipe waits for somebody to write to it.
    if let Place::Path(path) = &place
        && !path.metadata().is_ok_and(|m| m.is_file() || m.is_dir())
    {
        return None;
    }
    Some(Report::new(&place.open().ok()?).ok()?.config.hidden)
}
