//! Where finished requests are reported. Looked at by the server and by the crate that sends.

use crate::Secret;

/// A receiver: `litellm_settings.callbacks` and its like, with what the environment and `callback_settings` say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Callback {
    /// As the file calls it.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// Headers that it wants: keys, for the most part.
    pub headers: Vec<(String, Secret)>,
    /// Name and password, if it wants those.
    pub login: Option<(String, Secret)>,
    /// What it takes.
    pub form: CallbackForm,
    /// Report answered requests.
    pub on_success: bool,
    /// Report failed requests.
    pub on_failure: bool,
}

/// What a receiver takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackForm {
    /// Spans of OpenTelemetry: OTLP over HTTP, in protobuf.
    Otlp {
        /// `service.name`.
        service: String,
    },
    /// JSON in LiteLLM's names.
    Json(JsonForm),
}

/// How records come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JsonForm {
    /// A list of them.
    #[default]
    Array,
    /// One a line.
    Lines,
    /// One a request.
    Single,
}
