//! `/v1/responses`, towards clients: [`parse`], [`response`], [`ResponseWriter`]; [`conversation`], [`follow`] and
//! [`deleted`] for servers that keep them. Towards providers: [`body`], [`events`], [`ResponseReader`].

mod body;
mod items;
mod kept;
mod reader;
mod request;
mod response;
mod stream;
mod tools;

pub use body::body;
pub use kept::{conversation, deleted, follow};
pub use reader::{ResponseReader, events};
pub use request::parse;
pub use response::response;
pub use stream::ResponseWriter;
