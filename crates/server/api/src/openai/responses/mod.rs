//! `/v1/responses`. For clients: [`parse`], [`parse_with`], [`response`], [`ResponseWriter`]; [`conversation`], [`follow`],
//! [`InputItems`] and [`deleted`] for servers that store responses. For providers: [`body`], [`events`], [`ResponseReader`].

mod body;
mod input_items;
mod items;
mod reader;
mod request;
mod response;
mod stored;
mod stream;
mod tools;

pub use body::body;
pub use input_items::{InputItems, PageQuery};
pub use reader::{ResponseReader, events};
pub use request::{parse, parse_with};
pub use response::response;
pub use stored::{bare, conversation, deleted, follow, input_len, output_items, referenced, response_of};
pub use stream::ResponseWriter;
