//! Fetches model files and keeps them: `octet pull`, `list`, `rm`, and the first half of `run`.
//!
//! A model is named by a [`Reference`]: a short name of the [`catalog`] (`smollm2:135m`), a repository on Hugging
//! Face (`hf:user/repo:Q4_K_M`), a URL of a GGUF file, or a path. Files are stored in the Hugging Face hub's own cache
//! layout (`cache.rs` draws it), so other tools find them there and vice versa; downloads are resumed,
//! verified by SHA-256 wherever a hash is known, and safe to run twice at once.
//!
//! ```no_run
//! use octet_hub::{Event, Hub, HubConfig, Reference};
//!
//! let hub = Hub::new(HubConfig::from_env(|name| std::env::var(name).ok())?);
//! let model = Reference::parse("smollm2:135m")?;
//! let path = hub.ensure(&model, &|event: Event<'_>| {
//!     if let Event::Advanced { file, bytes, total, rate } = event {
//!         eprintln!("{file}: {bytes} of {total:?} at {rate} bytes/s");
//!     }
//! })?;
//! for model in hub.list()? {
//!     println!("{} {} {}", model.reference, octet_hub::size(model.size), model.path.display());
//! }
//! # let _ = path;
//! # Ok::<(), octet_hub::Error>(())
//! ```
//!
//! Nothing here looks at the environment but through the look-up given to [`HubConfig::from_env`]; the HTTP library
//! finds the system's certificates (and `SSL_CERT_FILE`) by itself.

mod cache;
pub mod catalog;
mod client;
mod config;
mod download;
mod error;
mod fetcher;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod http;
mod hub;
mod huggingface;
mod inventory;
pub mod modelfile;
pub mod others;
mod pip;
mod preview;
mod progress;
mod reference;
mod select;
mod simple_index;
mod snapshot;
mod tls;
mod values;
mod web;
mod wheel;

pub use config::{HUGGING_FACE, HubConfig, Patience, Proxies, Secret};
pub use error::{Class, Error, size};
pub use hub::Hub;
pub use inventory::{Installed, Removed};
pub use pip::{DEFAULT_INDEX, PipConfig};
pub use preview::Preview;
pub use progress::{Event, Progress, Silent};
pub use reference::{HubRef, MAIN, Reference, Select, ShortRef};
pub use select::{is_projector, projector_rank};
