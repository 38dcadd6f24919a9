//! The router's state for the admin page: deployments and their health, running requests, the global budget.

use octet_api::rfc3339;
use serde_json::{Value, json};

use super::Gateway;
use super::target::Target;

impl Gateway {
    /// The current state of all deployments, and other figures for the operator.
    pub fn overview(&self) -> Value {
        let table = self.router().table();
        let mut deployments = Vec::new();
        for status in self.router().status() {
            let mut out = serde_json::to_value(&status).unwrap_or_default();
            let of =
                |(_, d): &(_, &std::sync::Arc<octet_router::Deployment<Target>>)| d.id() == status.deployment;
            if let Some((_, d)) = table.deployments().find(of) {
                let limits = &d.terms.limits;
                out["rpm"] = limits.rpm.into();
                out["tpm"] = limits.tpm.into();
                out["max_parallel"] = limits.max_parallel.into();
                out["loaded"] = self.loaded(&d.target).into();
            }
            deployments.push(out);
        }
        let mut left_out = Vec::new();
        for group in table.groups() {
            let name = group.name.as_str();
            left_out.extend(group.skipped.iter().map(|why| json!({"group": name, "reason": why})));
        }
        let budget = self.store().and_then(|s| s.total()).and_then(|total| {
            let limit = total.limits.budget?.limit.dollars();
            let resets = total.resets.map(|at| rfc3339(u64::try_from(at).unwrap_or(0)));
            Some(json!({"spend": total.spent.dollars(), "max_budget": limit, "budget_reset_at": resets}))
        });
        json!({
            "version": concat!("octet ", env!("CARGO_PKG_VERSION")),
            "busy": self.busy(),
            "has_keys": self.has_virtual_keys(),
            "budget": budget.filter(|_| self.current().has_total),
            "deployments": deployments,
            "left_out": left_out,
        })
    }

    /// Loading progress of a model on this machine, from 0 to 1; `None` for remote ones.
    fn loaded(&self, target: &Target) -> Option<f64> {
        match target {
            Target::LocalTarget(here) => Some(self.inference.models.progress(here.index())),
            Target::OnDemandTarget(server) => Some(if server.is_ready() { 1.0 } else { 0.0 }),
            Target::RemoteTarget(_) | Target::MockTarget(_) => None,
        }
    }
}
