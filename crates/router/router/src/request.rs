//! A client's request, and its settings for the router. Created by the server; dispatched by `dispatch`.

use std::sync::Arc;
use std::time::Duration;

use octet_api::core::GenerateRequest;
use octet_config::{SessionKey, Sticky};

use crate::target::Original;

/// A client's request.
#[derive(Debug, Clone)]
pub struct Call {
    /// The request.
    pub request: Arc<GenerateRequest>,
    /// The client's bytes, for targets that speak its dialect: they are forwarded, and so is the provider's answer.
    pub original: Option<Arc<Original>>,
    /// Headers by lower-case name: those that rules and sessions use, or all.
    pub headers: Vec<(String, String)>,
    /// The id of the client's key; not the key itself.
    pub key: Option<String>,
    /// Time limit, if shorter than the configuration's.
    pub timeout: Option<Duration>,
    /// The time limit that the client itself set. If it passes, no deployment is the cause.
    pub patience: Option<Duration>,
    /// `tags` of the request, which may choose among deployments.
    pub tags: Vec<String>,
    /// The W3C `traceparent` header for targets.
    pub traceparent: Option<String>,
    /// The client's own settings for retries and fallbacks.
    pub options: RequestOptions,
    /// The names that may answer as fallbacks; `None` is all.
    pub allowed: Option<Allowed>,
}

/// A client's settings for its request. They take precedence over the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Retries after the first attempt within a group.
    pub retries: Option<u32>,
    /// Fallbacks after any failure.
    pub fallbacks: Option<Vec<String>>,
}

/// The names that a client may use.
#[derive(Clone)]
pub struct Allowed(pub Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allowed")
    }
}

impl Call {
    /// A request without headers.
    pub fn new(request: GenerateRequest) -> Self {
        Self {
            request: Arc::new(request),
            original: None,
            headers: Vec::new(),
            key: None,
            timeout: None,
            patience: None,
            tags: Vec::new(),
            traceparent: None,
            options: RequestOptions::default(),
            allowed: None,
        }
    }

    /// Whether `name` may answer.
    pub(crate) fn may_use(&self, name: &str) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| (allowed.0)(name))
    }

    /// The key of the request's session.
    pub(crate) fn session(&self, sticky: Option<&Sticky>) -> Option<String> {
        sticky?.by.iter().find_map(|by| match by {
            SessionKey::Header(name) => self.headers.iter().find(|h| h.0 == *name).map(|h| h.1.clone()),
            SessionKey::User => self.request.user.clone(),
            SessionKey::ApiKey => self.key.clone(),
        })
    }
}
