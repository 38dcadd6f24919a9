//! Where finished requests are reported. Read by the server and the `callbacks` crate.

use std::time::Duration;

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

/// A receiver of alerts, from `general_settings.alerting`.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertReceiver {
    /// Its address, which is a secret.
    pub url: Secret,
    /// What it gets.
    pub form: AlertForm,
}

/// The format of alerts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertForm {
    /// A text, as for Slack's incoming webhooks.
    Slack,
    /// All facts, with LiteLLM's field names.
    Json,
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

/// A server that sees each request or each answer, and may change or refuse it (`hooks`, our own).
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// Its address, which may contain a key.
    pub url: Secret,
    /// `on: response`: it sees answers, not requests.
    pub on_response: bool,
    /// Requests or answers pass if it does not answer.
    pub fails_open: bool,
    /// Time limit of its answer.
    pub timeout: Option<Duration>,
}
