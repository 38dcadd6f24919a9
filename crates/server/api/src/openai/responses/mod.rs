//! `/v1/responses`, towards clients: [`parse`], [`response`], [`ResponseWriter`]; [`conversation`], [`follow`] and
//! [`deleted`] for servers that keep them.

mod items;
mod kept;
mod request;
mod response;
mod stream;
mod tools;

pub use kept::{conversation, deleted, follow};
pub use request::parse;
pub use response::response;
pub use stream::ResponseWriter;
