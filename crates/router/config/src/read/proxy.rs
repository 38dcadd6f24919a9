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

/// Services are named in a note; Python is refused.
pub(crate) fn callbacks(litellm: Option<&Fields>) {
    let Some(fields) = litellm else { return };
    for name in ["callbacks", "success_callback", "failure_callback", "service_callback"] {
        let Some(node) = fields.get(name) else { continue };
        for callback in fields.texts(name).unwrap_or_default() {
            let path = format!("litellm_settings.{name}");
            match callback.as_str() {
                "prometheus" | "prometheus_system" => {}
                module if module.contains('.') => {
                    let module = crate::problem::quoted(module);
                    fields.reader.wrong(
                        &node.span,
                        format!("{path}: {module} is Python, which is not run here: remove it"),
                    );
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
