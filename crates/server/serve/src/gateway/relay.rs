//! Requests for what is an account's and no model's: files and batches. Called by `http` for them.

use std::sync::Arc;

use hyper::{HeaderMap, Method};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_config::Provider;
use octet_router::{Resolved, Upload};
use octet_upstream::Raw;

use super::Gateway;
use super::target::{RemoteTarget, Target};

/// An answer, and whose it is.
pub struct Relayed {
    /// The answer.
    pub raw: Raw,
    /// The deployment whose account it is, for logs.
    pub route: String,
}

impl Gateway {
    /// Hands a request on to the provider of the model `name`, or to the only account that there is.
    pub async fn relay(
        &self,
        name: Option<&str>,
        method: Method,
        path: &str,
        upload: Option<&Arc<Upload>>,
        headers: &HeaderMap,
    ) -> Result<Relayed, ApiError> {
        let (route, target) = self.account(name)?;
        let raw = target.relay(method, path, upload, headers).await.map_err(|e| e.to_error())?;
        Ok(Relayed { raw, route })
    }

    fn account(&self, name: Option<&str>) -> Result<(String, RemoteTarget), ApiError> {
        let table = self.router().table();
        if let Some(name) = name {
            let Resolved::Group { group, .. } = table.resolve(self.name(name)) else {
                return Err(crate::pipeline::unknown(name, &table.known()));
            };
            let found = group.deployments.iter().find_map(|d| match &d.target {
                Target::RemoteTarget(far) if far.has_files(true) => Some((d.id().to_string(), far.clone())),
                _ => None,
            });
            let what = || format!("no provider of '{}' has files and batches", shortened(name));
            return found.ok_or_else(|| ApiError::invalid("model", what()));
        }
        // At OpenAI's own address, or Azure's; else wherever else there may be some.
        let own = self.accounts(false);
        let accounts = if own.is_empty() { self.accounts(true) } else { own };
        match accounts.as_slice() {
            [(_, id, far)] => Ok((id.clone(), far.clone())),
            [] => {
                let what = "files and batches are passed on to OpenAI, Azure and services like OpenAI's, and no model here is theirs";
                Err(ApiError::new(ErrorKind::NotFound, what))
            }
            many => {
                let names: Vec<&str> = many.iter().map(|(group, ..)| group.as_str()).collect();
                let what = format!(
                    "there are several accounts; name a model of the one that is meant by '?model=NAME' or the header \
                     'x-litellm-model': {}",
                    names.join(", ")
                );
                Err(ApiError::invalid("model", what))
            }
        }
    }
}

impl Gateway {
    /// Accounts that have files and batches: a name that leads to each, its deployment, and that. `any`: at services like OpenAI's, too.
    fn accounts(&self, any: bool) -> Vec<(String, String, RemoteTarget)> {
        let table = self.router().table();
        let mut out: Vec<(String, String, RemoteTarget)> = Vec::new();
        for name in table.names() {
            let Resolved::Group { group, .. } = table.resolve(name) else { continue };
            for d in &group.deployments {
                if let Target::RemoteTarget(far) = &d.target
                    && far.has_files(any)
                    && !out.iter().any(|(_, _, known)| known.is_same_account(far))
                {
                    out.push((name.clone(), d.id().to_string(), far.clone()));
                }
            }
        }
        out
    }
}

impl RemoteTarget {
    /// Whether its provider has files and batches; `any` like OpenAI's may, where somebody says so.
    fn has_files(&self, any: bool) -> bool {
        match self.provider() {
            Provider::OpenAi | Provider::AzureOpenAi => true,
            Provider::OpenAiCompatible => any,
            _ => false,
        }
    }
}
