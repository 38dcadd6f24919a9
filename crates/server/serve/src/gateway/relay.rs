//! Requests for objects of an account: files and batches.

use std::sync::Arc;

use hyper::{HeaderMap, Method};
use octet_api::{ApiError, ErrorKind, shortened};
use octet_config::Provider;
use octet_router::{Resolved, Upload};
use octet_upstream::Raw;

use super::Gateway;
use super::target::{RemoteTarget, Target};

/// An answer, and the account that it came from.
pub struct Relayed {
    /// The answer.
    pub raw: Raw,
    /// The account's deployment, for logs.
    pub route: String,
}

impl Gateway {
    /// Forwards a request to the provider of the model `name`, or to the only account.
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
        // OpenAI's and Azure's accounts first; others only if there are none.
        let own = self.accounts(false);
        let accounts = if own.is_empty() { self.accounts(true) } else { own };
        match accounts.as_slice() {
            [(_, id, far)] => Ok((id.clone(), far.clone())),
            [] => {
                let what = "files and batches are forwarded to OpenAI, Azure and OpenAI-compatible services, and no configured model is one of theirs";
                Err(ApiError::new(ErrorKind::NotFound, what))
            }
            many => {
                let names: Vec<&str> = many.iter().map(|(group, ..)| group.as_str()).collect();
                let what = format!(
                    "there are several accounts; select one by a model, with '?model=NAME' or the header \
                     'x-litellm-model': {}",
                    names.join(", ")
                );
                Err(ApiError::invalid("model", what))
            }
        }
    }
}

impl Gateway {
    /// Accounts with files and batches: a model name of each, its deployment, its target. With `any` also OpenAI-compatible services.
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
    /// Whether its provider has files and batches; with `any`, OpenAI-compatible services are assumed to.
    fn has_files(&self, any: bool) -> bool {
        match self.provider() {
            Provider::OpenAi | Provider::AzureOpenAi => true,
            Provider::OpenAiCompatible => any,
            _ => false,
        }
    }
}
