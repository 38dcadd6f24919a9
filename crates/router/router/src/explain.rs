//! Shows where a request would go, without sending it: for `octet route explain` and `octet config check`.

use std::collections::HashSet;
use std::sync::Arc;

use octet_config::Side;
use tokio::time::Instant;

use crate::dispatch::Job;
use crate::retry::RetryState;
use crate::table::Resolved;
use crate::target::Target;
use crate::trace::{Route, Step};
use crate::turn::{left_out, unavailable};

impl<T: Target> Job<T> {
    /// The route that a request would take, without sending it. Steps that depend on an answer (failures, confidence) are missing.
    pub(crate) async fn explain(mut self) -> Route {
        let table = Arc::clone(&self.table);
        let requested = self.call.request.model.clone();
        match table.resolve(&requested) {
            Resolved::Group { group, by, .. } => self.resolved(group.name.as_str(), by),
            Resolved::Cascade { cascade, by } => self.resolved(&cascade.name, by),
            Resolved::Unknown => {}
        }
        let mut known = HashSet::new();
        let mut next = Some(requested);
        while let Some(name) = next.take().filter(|name| known.insert(name.clone())) {
            match table.resolve(&name) {
                Resolved::Cascade { cascade, .. } => {
                    let (side, _) = self.rule(&table, cascade).await;
                    next = Some(if side == Side::Fast { &cascade.fast } else { &cascade.strong }.clone());
                }
                Resolved::Unknown => {
                    next = table.policy.fallbacks.default.first().cloned();
                    if let Some(to) = &next {
                        self.fallback(&name, to, "unknown_model");
                    }
                }
                Resolved::Group { group, name, .. } => {
                    self.count_tokens(&table, group).await;
                    let from = group.name.as_str();
                    let kind =
                        match self.pick(&table, group, name, &RetryState::new(group.deployments.len()), true)
                        {
                            Ok(pick) => {
                                self.trace.step(Step::Chose {
                                    group: from.into(),
                                    deployment: group.deployments[pick.index].id().into(),
                                    why: pick.why.into(),
                                });
                                break;
                            }
                            Err(_) if group.deployments.is_empty() => {
                                self.record_failure(from, left_out(group)).kind
                            }
                            Err(reasons) => {
                                self.record_failure(from, unavailable(group, name, &reasons, Instant::now()))
                                    .kind
                            }
                        };
                    let others = table.policy.fallbacks.after(from, kind);
                    next = others.iter().find(|to| !known.contains(*to)).cloned();
                    if let Some(to) = &next {
                        self.fallback(from, to, kind.name());
                    }
                }
            }
        }
        self.trace.route()
    }
}
