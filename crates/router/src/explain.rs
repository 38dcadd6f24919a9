//! Where a request would go, without sending it: for `octet route explain` and `octet config check`. Called by `router`.

use std::collections::HashSet;
use std::sync::Arc;

use octet_config::Side;
use tokio::time::Instant;

use crate::dispatch::{Job, nobody};
use crate::round::Round;
use crate::table::Resolved;
use crate::target::Target;
use crate::trace::{Route, Step};

impl<T: Target> Job<T> {
    /// Where the request would go, without sending it.
    pub(crate) async fn explain(mut self) -> Route {
        let table = Arc::clone(&self.table);
        let asked = self.call.request.model.clone();
        let mut to = match table.resolve(&asked) {
            Resolved::Group { group, by, .. } => {
                self.resolved(group.name.as_str(), by);
                Some(asked.clone())
            }
            Resolved::Cascade { cascade, by } => {
                self.resolved(&cascade.name, by);
                let (side, _) = self.rule(&table, cascade).await;
                Some(if side == Side::Fast { cascade.fast.clone() } else { cascade.strong.clone() })
            }
            Resolved::Unknown => table.policy.fallbacks.default.first().cloned().inspect(|to| {
                self.fallback(&asked, to, "unknown_model");
            }),
        };
        let mut known = HashSet::new();
        while let Some(Resolved::Group { group, .. }) = to.as_deref().map(|name| table.resolve(name)) {
            known.insert(group.name.as_str().to_string());
            self.count_tokens(&table, group).await;
            let round = Round::new(group.deployments.len());
            let kind = match self.pick(&table, group, &round, true) {
                Ok(pick) => {
                    let d = &group.deployments[pick.index];
                    self.trace.step(Step::Chose {
                        group: group.name.as_str().into(),
                        deployment: d.id().into(),
                        why: pick.why.into(),
                    });
                    break;
                }
                Err(reasons) => nobody(group, &reasons, Instant::now()).kind,
            };
            let next = table.policy.fallbacks.after(group.name.as_str(), kind);
            let next = next.iter().find(|n| !known.contains(*n)).cloned();
            if let Some(next) = &next {
                self.fallback(group.name.as_str(), next, kind.name());
            }
            to = next;
        }
        self.trace.route()
    }
}
