//! `/v1/responses`. For clients: [`parse`], [`parse_with`], [`response`], [`ResponseWriter`]; [`conversation`], [`follow`],
//! [`input_items`] and [`deleted`] for servers that store responses. For providers: [`body`], [`events`], [`ResponseReader`].

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
pub use stored::{
    conversation, deleted, follow, input_items, input_len, input_page, output_items, references, response_of,
};
pub use stream::ResponseWriter;
