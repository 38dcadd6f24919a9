//! The router's configuration: one file, read into plain data ([`Config`]).
//!
//! `yaml` parses a file into a tree with the line and column of each value; `load` merges
//! included files; `read` reads the keys as `sections` declares them, by the rule of `keys`:
//! every key is used, ignored with a note, or an error. `model` is the result: every default is filled in, every secret resolved, every name
//! checked. All mistakes of a file are found at once.
//!
//! ```
//! use octet_config::{Config, Disk};
//!
//! let text = "model_list:\n- {model_name: local, litellm_params: {model: ollama/qwen3, rmp: 30}}\n";
//! let problems = Config::parse("octet.yaml", text, &Disk(|_: &str| None)).unwrap_err();
//! assert_eq!(
//!     problems.to_string(),
//!     "octet.yaml:2:61: litellm_params has no key 'rmp': did you mean 'rpm'?"
//! );
//! ```

mod families;
mod fields;
mod grouped;
pub mod header;
pub mod import;
mod keys;
mod load;
pub mod model;
mod prices;
mod printable;
mod problem;
mod read;
mod reader;
pub mod schema;
mod secret;
mod sections;
mod source;
mod span;
mod tree;
pub mod units;
mod yaml;

pub use families::{Accepts, NoThinking, Off, ReasoningForm, ResponsesFor, Thinking};
pub use grouped::grouped;
pub use model::*;
pub use prices::{Price, PriceList};
pub use printable::printable;
pub use problem::{Problem, Problems, near};
pub use secret::Secret;
pub use source::{Disk, Ignoring, Source, read_file};
pub use span::{Note, Span};
