//! `/v1/responses`, towards clients: [`parse`], [`response`], [`ResponseWriter`].

mod items;
mod request;
mod response;
mod stream;

pub use request::parse;
pub use response::response;
pub use stream::ResponseWriter;
