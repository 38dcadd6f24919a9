//! LiteLLM's callbacks: where finished requests are reported.

use crate::fields::Fields;
use crate::problem::quoted;
use crate::sections::{CALLBACK, HOOK};
use crate::yaml::{Node, Value};
use crate::{AlertForm, AlertReceiver, Callback, CallbackForm, Hook, JsonForm, Secret};

/// LiteLLM's callbacks that refuse or filter requests.
const GUARDS: &[&str] = &[
    "aporia_prompt_injection",
    "azure_content_safety",
    "banned_keywords",
    "blocked_user_check",
    "detect_prompt_injection",
    "google_text_moderation",
    "hide_secrets",
    "lakera_prompt_injection",
    "llamaguard_moderations",
    "llmguard_moderations",
    "openai_moderations",
    "presidio",
];

/// The receivers of reports. Unknown services are reported in a note; callbacks that may refuse requests are not enforced.
pub(crate) fn callbacks(root: &Fields, litellm: Option<&Fields>) -> Vec<Callback> {
    let own = webhooks(root);
    let mut out: Vec<Callback> = Vec::new();
    let Some(fields) = litellm else { return out };
    for name in ["callbacks", "success_callback", "failure_callback", "service_callback"] {
        let Some(node) = fields.get(name) else { continue };
        for callback in fields.texts(name).unwrap_or_default() {
            let path = format!("litellm_settings.{name}");
            let found = match callback.as_str() {
                "prometheus" | "prometheus_system" => continue,
                guard if GUARDS.contains(&guard) => {
                    let why = format!("'{guard}' filters requests, which is not supported");
                    fields.reader.not_enforced(&node.span, &path, &why);
                    continue;
                }
                service => match own.iter().find(|(name, _)| name == service) {
                    Some((_, Some(own))) => Ok(Some(own.clone())),
                    // The error was already reported.
                    Some((_, None)) => continue,
                    None => known(fields, service),
                },
            };
            // Callbacks for success or failure only observe; a general one may refuse or change requests.
            if callback.contains('.') && matches!(found, Ok(None)) && name == "callbacks" {
                let why = format!("{} is a Python plugin, which is not supported", quoted(&callback));
                fields.reader.not_enforced(&node.span, &path, &why);
                continue;
            }
            match found {
                Ok(Some(made)) if name != "service_callback" => add(&mut out, made, name),
                Ok(_) => {
                    let what = format!("nothing is sent to {}; /metrics has the figures", quoted(&callback));
                    fields.reader.note(&node.span, path, what);
                }
                Err(why) => {
                    fields.reader.note(
                        &node.span,
                        path,
                        format!("nothing is sent to {}: {why}", quoted(&callback)),
                    );
                }
            }
        }
    }
    out
}

/// Adds one; a name in two lists gets both kinds of reports.
fn add(out: &mut Vec<Callback>, new: Callback, list: &str) {
    let success = list != "failure_callback" && new.on_success;
    let failure = list != "success_callback" && new.on_failure;
    match out.iter_mut().find(|c| c.name == new.name) {
        Some(old) => {
            old.on_success |= success;
            old.on_failure |= failure;
        }
        None => out.push(Callback { on_success: success, on_failure: failure, ..new }),
    }
}

/// Reads a callback's settings from the environment.
struct Environment<'a> {
    fields: &'a Fields<'a>,
    /// LiteLLM's name of the callback.
    name: &'a str,
}

impl Environment<'_> {
    /// The first of the variables that is set and not empty.
    fn variable(&self, names: &[&str]) -> Option<String> {
        names
            .iter()
            .find_map(|name| self.fields.reader.variable(name).filter(|value| !value.trim().is_empty()))
    }

    fn need(&self, name: &str) -> Result<String, String> {
        self.variable(&[name]).ok_or(format!("{name} is not set"))
    }

    /// The headers in the first of the variables that is set.
    fn headers(&self, names: &[&str]) -> Result<Vec<(String, Secret)>, String> {
        self.variable(names).map_or(Ok(Vec::new()), |text| listed(&text))
    }

    fn plain(&self, url: String, form: CallbackForm) -> Callback {
        Callback {
            name: self.name.into(),
            url,
            headers: Vec::new(),
            login: None,
            form,
            on_success: true,
            on_failure: true,
        }
    }

    fn otlp(&self) -> CallbackForm {
        let service = self.variable(&["OTEL_SERVICE_NAME"]).unwrap_or_else(|| "octet".into());
        CallbackForm::Otlp { service }
    }

    fn opentelemetry(&self) -> Result<Callback, String> {
        let protocol = self.variable(&["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER"]).unwrap_or_default();
        if protocol.contains("grpc") {
            return Err("gRPC is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and its port (usually 4318)".into());
        }
        let whole = self.variable(&["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]);
        let base =
            || self.variable(&["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_ENDPOINT"]).map(|base| traces_of(&base));
        let url = whole.or_else(base).ok_or("OTEL_EXPORTER_OTLP_ENDPOINT is not set")?;
        let headers = self.headers(&[
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_HEADERS",
        ])?;
        Ok(Callback { headers, ..self.plain(url, self.otlp()) })
    }

    fn langfuse(&self) -> Result<Callback, String> {
        let (public, secret) = (self.need("LANGFUSE_PUBLIC_KEY")?, self.need("LANGFUSE_SECRET_KEY")?);
        // LiteLLM's two names have different default hosts.
        let default = match self.name {
            "langfuse" => "https://cloud.langfuse.com",
            _ => "https://us.cloud.langfuse.com",
        };
        let host = self.variable(&["LANGFUSE_OTEL_HOST", "LANGFUSE_HOST"]).unwrap_or_else(|| default.into());
        let host = if host.contains("://") { host } else { format!("https://{host}") };
        let url = format!("{}/api/public/otel/v1/traces", host.trim_end_matches('/'));
        let password = Secret::new(&secret).ok_or("LANGFUSE_SECRET_KEY is empty")?;
        let version = Secret::new("4").map(|v| ("x-langfuse-ingestion-version".to_string(), v));
        Ok(Callback {
            headers: version.into_iter().collect(),
            login: Some((public, password)),
            ..self.plain(url, self.otlp())
        })
    }

    fn webhook(&self) -> Result<Callback, String> {
        let url = self.need("GENERIC_LOGGER_ENDPOINT")?;
        let headers = self.headers(&["GENERIC_LOGGER_HEADERS"])?;
        Ok(Callback { headers, ..self.plain(url, CallbackForm::Json(JsonForm::Array)) })
    }
}

/// A service by LiteLLM's name; `None` if it is unknown, an error if one of its settings is missing.
fn known(fields: &Fields, name: &str) -> Result<Option<Callback>, String> {
    let environment = Environment { fields, name };
    let made = match name {
        "otel" | "opentelemetry" => environment.opentelemetry()?,
        "langfuse" | "langfuse_otel" => environment.langfuse()?,
        "generic_api" | "generic" => environment.webhook()?,
        _ => return Ok(None),
    };
    address(&made.url)?;
    Ok(Some(made))
}

/// The address of traces at a collector.
fn traces_of(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with("/v1/traces") { base.into() } else { format!("{base}/v1/traces") }
}

fn address(url: &str) -> Result<(), String> {
    let parsed = url::Url::parse(url).ok().filter(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    parsed.map(drop).ok_or_else(|| format!("{} is not a URL like http://localhost:4318", quoted(url)))
}

/// `name=value,name=value`.
fn listed(text: &str) -> Result<Vec<(String, Secret)>, String> {
    let mut out = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        // An invalid header may contain a key: it is not quoted.
        let (name, value) =
            part.split_once('=').ok_or("its headers must have the form name=value,name=value")?;
        let value = Secret::new(&decoded(value)).ok_or("one of its headers has no value")?;
        out.push((header_name(name)?, value));
    }
    Ok(out)
}

fn header_name(name: &str) -> Result<String, String> {
    let name = name.trim().to_ascii_lowercase();
    match crate::header::wrong_name(&name) {
        Some(why) => Err(format!("its header {} {why}", quoted(&name))),
        None => Ok(name),
    }
}

/// Decodes percent-escapes, as in OpenTelemetry's values.
fn decoded(text: &str) -> String {
    let bytes: Vec<u8> =
        url::form_urlencoded::parse(format!("={}", text.replace('+', "%2B").replace('&', "%26")).as_bytes())
            .next()
            .map(|(_, value)| value.into_owned().into_bytes())
            .unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The webhooks of `callback_settings` by name; `None` for an invalid one, which was reported.
fn webhooks(root: &Fields) -> Vec<(String, Option<Callback>)> {
    let mut out = Vec::new();
    for entry in root.map("callback_settings").unwrap_or_default() {
        // Other services may have other settings.
        if !matches!(entry.node.value, Value::Map(_)) {
            continue;
        }
        let Some(fields) = Fields::new(root.reader, &CALLBACK, &entry.node) else { continue };
        if fields.text("callback_type").as_deref() != Some("generic_api") {
            continue;
        }
        let (made, mut missing) = root.reader.leaving_out(|| webhook(&fields, &entry.key));
        let made = match made {
            Ok(made) => Some(made).filter(|_| missing.is_empty()),
            Err(why) => {
                if missing.is_empty() {
                    missing.push(why);
                }
                None
            }
        };
        for why in missing {
            let what = format!("nothing is sent to {}: {why}", quoted(&entry.key));
            root.reader.note(&entry.node.span, "callback_settings", what);
        }
        out.push((entry.key.clone(), made));
    }
    out
}

fn webhook(fields: &Fields, name: &str) -> Result<Callback, String> {
    let form = [("json_array", JsonForm::Array), ("ndjson", JsonForm::Lines), ("single", JsonForm::Single)];
    let form = fields.one_of("log_format", &form).unwrap_or_default();
    let events = fields.texts("event_types");
    let tells = |event: &str| events.as_ref().is_none_or(|all| all.iter().any(|e| e == event));
    let mut headers = Vec::new();
    for entry in fields.map("headers").unwrap_or_default() {
        let Some(value) = header_value(fields, &entry.node) else { continue };
        headers.push((header_name(&entry.key)?, value));
    }
    let url = fields.name("endpoint").ok_or("it has no endpoint")?;
    address(&url)?;
    let (on_success, on_failure) = (tells("llm_api_success"), tells("llm_api_failure"));
    Ok(Callback {
        name: name.into(),
        url,
        headers,
        login: None,
        form: CallbackForm::Json(form),
        on_success,
        on_failure,
    })
}

fn header_value(fields: &Fields, node: &Node) -> Option<Secret> {
    let text = fields.text_of("headers", node)?;
    fields.reader.secret(&node.span, "the header", &text)
}

/// `general_settings.alerting`: LiteLLM's names of receivers, whose addresses are in the environment.
pub(crate) fn alerts(general: &Fields) -> Vec<AlertReceiver> {
    let Some(node) = general.get("alerting").filter(|node| matches!(node.value, Value::List(_))) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for name in general.texts("alerting").unwrap_or_default() {
        let (variable, form) = match name.as_str() {
            "webhook" => ("WEBHOOK_URL", AlertForm::Json),
            "slack" => ("SLACK_WEBHOOK_URL", AlertForm::Slack),
            other => {
                let text =
                    format!("no alerts are sent to {}: receivers are webhook and slack", quoted(other));
                general.reader.note(&node.span, "general_settings.alerting", text);
                continue;
            }
        };
        match general.reader.variable(variable).and_then(|url| Secret::new(&url)) {
            Some(url) => out.push(AlertReceiver { url, form }),
            None => {
                let text = format!("no alerts are sent to '{name}': {variable} is not set");
                general.reader.note(&node.span, "general_settings.alerting", text);
            }
        }
    }
    out
}

/// `hooks`. One that cannot be read is an error: it may protect something.
pub(crate) fn hooks(root: &Fields) -> Vec<Hook> {
    let mut out = Vec::new();
    for node in root.list("hooks").unwrap_or_default() {
        let Some(hook) = Fields::new(root.reader, &HOOK, node) else { continue };
        let fails_open = hook.one_of("fail", &[("open", true), ("closed", false)]).unwrap_or(false);
        let on_response = hook.one_of("on", &[("request", false), ("response", true)]).unwrap_or(false);
        let timeout = hook.limit("timeout");
        match hook.secret("url") {
            Some(url) if url.expose().starts_with("http://") || url.expose().starts_with("https://") => {
                out.push(Hook { url, on_response, fails_open, timeout });
            }
            _ => root
                .reader
                .wrong(&node.span, "an entry of hooks needs a url that starts with http:// or https://"),
        }
    }
    out
}
