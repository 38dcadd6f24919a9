//! Where finished requests are reported. Read by the server and the `callbacks` crate.

use crate::Secret;

/// A receiver: an entry of `litellm_settings.callbacks` and similar lists, with its settings from the environment and `callback_settings`.
#[derive(Debug, Clone, PartialEq)]
pub struct Callback {
    /// Its name in the file.
    pub name: String,
    /// Its address.
    pub url: String,
    /// Its headers, mostly keys.
    pub headers: Vec<(String, Secret)>,
    /// User name and password, if it requires them.
    pub login: Option<(String, Secret)>,
    /// The format of reports.
    pub form: CallbackForm,
    /// Report answered requests.
    pub on_success: bool,
    /// Report failed requests.
    pub on_failure: bool,
}

/// The format of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackForm {
    /// OpenTelemetry spans: OTLP over HTTP, in protobuf.
    Otlp {
        /// `service.name`.
        service: String,
    },
    /// JSON with LiteLLM's field names.
    Json(JsonForm),
}

/// How several records are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JsonForm {
    /// A JSON array.
    #[default]
    Array,
    /// One record per line.
    Lines,
    /// One record per request.
    Single,
}
