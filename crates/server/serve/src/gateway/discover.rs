//! `discover: dns`: a name in `api_base` that stands for several addresses, as of a headless service in Kubernetes, becomes one deployment
//! for each.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hyper::Uri;
use octet_config::{Config, Deployment, Target};

use super::Gateway;

/// How often names are looked up.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The addresses of names with ports, in order.
pub type Addresses = BTreeMap<(String, u16), Vec<SocketAddr>>;

/// A configuration as it was read, and the addresses that it was applied with.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The configuration.
    pub config: Config,
    /// The addresses.
    pub addresses: Addresses,
}

/// The name and port of a deployment that is looked up.
fn name(d: &Deployment) -> Option<(String, u16)> {
    let Target::Remote(remote) = &d.target else { return None };
    let uri: Uri = remote.api_base.parse().ok().filter(|_| d.info.discovers)?;
    Some((uri.host()?.to_string(), uri.port_u16().unwrap_or(80)))
}

/// Looks up all names. One that cannot be found keeps the addresses that it had `before`.
pub fn look_up(config: &Config, before: &Addresses) -> Addresses {
    let mut out = Addresses::new();
    for wanted in config.deployments.iter().filter_map(name) {
        if out.contains_key(&wanted) {
            continue;
        }
        let found = (wanted.0.as_str(), wanted.1).to_socket_addrs();
        let addresses = match found {
            Ok(found) => {
                let mut found: Vec<SocketAddr> = found.collect();
                found.sort_unstable();
                found.dedup();
                found
            }
            Err(e) => {
                tracing::warn!(
                    name = wanted.0,
                    "the addresses of a deployment's name cannot be looked up: {e}"
                );
                before.get(&wanted).cloned().unwrap_or_default()
            }
        };
        out.insert(wanted, addresses);
    }
    out
}

/// The configuration with one deployment for each address. One without an address stays as it is.
pub fn expand(config: &Config, known: &Addresses) -> Config {
    let mut out = config.clone();
    if known.is_empty() {
        return out;
    }
    out.deployments = config
        .deployments
        .iter()
        .flat_map(|d| {
            let addresses = name(d).and_then(|name| known.get(&name)).map_or(&[][..], Vec::as_slice);
            let each: Vec<Deployment> = addresses.iter().filter_map(|address| at(d, *address)).collect();
            if each.is_empty() { vec![d.clone()] } else { each }
        })
        .collect();
    out
}

/// The deployment at one of its addresses.
fn at(d: &Deployment, address: SocketAddr) -> Option<Deployment> {
    let mut one = d.clone();
    let Target::Remote(remote) = &mut one.target else { return None };
    let uri: Uri = remote.api_base.parse().ok()?;
    let path = uri.path_and_query().map_or("", |p| p.as_str()).trim_end_matches('/');
    remote.api_base = format!("http://{address}{path}");
    one.id = format!("{}@{}", d.id, address.ip());
    Some(one)
}

/// Looks names up as long as the server runs, and applies changes.
pub async fn watch(gateway: Arc<Gateway>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let known = gateway.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !known.config.deployments.iter().any(|d| d.info.discovers) {
            continue;
        }
        let this = Arc::clone(&gateway);
        let applied = crate::blocking::spawn_blocking(move || {
            if look_up(&known.config, &known.addresses) == known.addresses {
                return Ok(());
            }
            // The configuration may have been read again meanwhile.
            let _one_at_a_time = this.reloading.lock().unwrap_or_else(PoisonError::into_inner);
            let config = this.known.lock().unwrap_or_else(PoisonError::into_inner).config.clone();
            this.apply(&config).map_err(|e| e.to_string())
        });
        match applied.await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::error!("new addresses cannot be used: {why}"),
            // The runtime ends.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use octet_config::{Config, Disk};

    use super::*;

    #[test]
    fn a_name_becomes_a_deployment_for_each_address() {
        let text = "model_list:\n- {model_name: m, litellm_params: {model: hosted_vllm/x, api_base: 'http://vllm.svc:8000/v1', discover: dns, rpm: 5}, model_info: {id: pods}}\n- {model_name: m, litellm_params: {model: hosted_vllm/y, api_base: 'http://other/v1'}, model_info: {id: other}}\n";
        let config = Config::parse("c.yaml", text, &Disk(|_: &str| None)).unwrap();
        let pods: Vec<SocketAddr> =
            ["10.0.0.1:8000", "[fd00::2]:8000"].iter().map(|a| a.parse().unwrap()).collect();
        let known = Addresses::from([(("vllm.svc".to_string(), 8000), pods)]);
        let shown = |config: &Config| -> Vec<(String, String)> {
            let base = |d: &Deployment| match &d.target {
                Target::Remote(r) => r.api_base.clone(),
                _ => panic!("{d:?}"),
            };
            config.deployments.iter().map(|d| (d.id.clone(), base(d))).collect()
        };
        let expected = [
            ("pods@10.0.0.1", "http://10.0.0.1:8000/v1"),
            ("pods@fd00::2", "http://[fd00::2]:8000/v1"),
            ("other", "http://other/v1"),
        ];
        assert_eq!(
            shown(&expand(&config, &known)),
            expected.map(|(id, base)| (id.to_string(), base.to_string()))
        );
        // Without an address, requests fail as they would without it.
        let none = Addresses::from([(("vllm.svc".to_string(), 8000), Vec::new())]);
        assert_eq!(shown(&expand(&config, &none)), shown(&config));
        let found = look_up(&config, &known);
        assert_eq!(
            found[&("vllm.svc".to_string(), 8000)].len(),
            2,
            "a name that is not found keeps its addresses"
        );
    }
}
