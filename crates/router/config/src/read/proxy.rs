//! Health checks.

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
