//! `cargo run -p octet-hub --example pull -- smollm2:135m`: fetches a model and prints where it is; without a name,
//! lists what is in the cache.

use octet_hub::{Event, Hub, HubConfig, Reference, size};

fn main() -> Result<(), octet_hub::Error> {
    let hub = Hub::new(HubConfig::from_env(|name| std::env::var(name).ok())?);
    let Some(name) = std::env::args().nth(1) else {
        for model in hub.list()? {
            println!(
                "{}\t{}\t{}\t{:?}",
                model.reference,
                size(model.size),
                model.path.display(),
                model.aliases
            );
        }
        return Ok(());
    };
    let path = hub.pull(&Reference::parse(&name)?, &|event: Event<'_>| match event {
        Event::Advanced { bytes, total, rate, .. } => {
            eprint!("\r{} of {} at {}/s   ", size(bytes), total.map_or("?".into(), size), size(rate as u64));
        }
        other => eprintln!("{other:?}"),
    })?;
    println!("{}", path.display());
    Ok(())
}
