//! Health checks, and LiteLLM's callbacks. Called by `read`.

use crate::HealthChecks;
use crate::fields::Fields;

/// `general_settings`' health checks.
pub(crate) fn health(general: Option<&Fields>) -> HealthChecks {
    let d = HealthChecks::default();
    let Some(general) = general else { return d };
    HealthChecks {
        enabled: general.bool("background_health_checks").unwrap_or(d.enabled),
        interval: general.limit("health_check_interval").unwrap_or(d.interval),
        timeout: general.limit("health_check_timeout").unwrap_or(d.timeout),
    }
}

/// LiteLLM's callbacks that refuse requests or take something out of them.
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

/// Services are named in a note; what may refuse requests is not enforced.
pub(crate) fn callbacks(litellm: Option<&Fields>) {
    let Some(fields) = litellm else { return };
    for name in ["callbacks", "success_callback", "failure_callback", "service_callback"] {
        let Some(node) = fields.get(name) else { continue };
        for callback in fields.texts(name).unwrap_or_default() {
            let path = format!("litellm_settings.{name}");
            match callback.as_str() {
                "prometheus" | "prometheus_system" => {}
                // Those of a success or a failure can only look; a general one may refuse requests and rewrite them.
                module if module.contains('.') && name == "callbacks" => {
                    let why = format!("{} is Python, which is not run here", crate::problem::quoted(module));
                    fields.reader.not_enforced(&node.span, &path, &why);
                }
                guard if GUARDS.contains(&guard) => {
                    let why = format!("'{guard}' filters requests, which is not done here");
                    fields.reader.not_enforced(&node.span, &path, &why);
                }
                service => {
                    let service = crate::problem::quoted(service);
                    fields.reader.note(
                        &node.span,
                        path,
                        format!("nothing is sent to {service}; /metrics has the figures"),
                    );
                }
            }
        }
    }
}
