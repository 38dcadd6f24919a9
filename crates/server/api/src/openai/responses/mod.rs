//! `/v1/responses`. For clients: [`parse`], [`parse_with`], [`response`], [`ResponseWriter`]; [`conversation`], [`follow`] and
//! [`deleted`] for servers that store responses. For providers: [`body`], [`events`], [`ResponseReader`].

mod body;
mod items;
mod reader;
mod request;
mod response;
mod stored;
mod stream;
mod tools;

pub use body::body;
pub use reader::{ResponseReader, events};
pub use request::{parse, parse_with};
pub use response::response;
pub use stored::{conversation, deleted, follow, output_items, response_of};
pub use stream::ResponseWriter;
