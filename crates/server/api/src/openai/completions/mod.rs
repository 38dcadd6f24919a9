//! `/v1/completions`, for clients: [`parse`], [`response`], [`CompletionWriter`].

mod logprobs;
mod request;
mod response;
mod stream;

pub use request::parse;
pub use response::response;
pub use stream::CompletionWriter;

use super::envelope::Names;

const NAMES: Names = Names { prefix: "cmpl-", answer: "text_completion", chunk: "text_completion" };
