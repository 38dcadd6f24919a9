//! Maps names to groups of deployments, as the configuration says. Immutable: a new configuration is a new table, and running requests keep
//! theirs. Built by the server, read by `dispatch`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use octet_config as config;
use octet_config::{Cascade, Config, GroupName, HealthChecks, Strategy};

use crate::choose::DeploymentSpec;
use crate::failure::FailureKind;
use crate::policy::Policy;
use crate::shared::Shared;
use crate::state::{Limits, State, States};
use crate::target::Target;
use crate::trace::By;

/// A deployment and its state.
#[derive(Debug)]
pub struct Deployment<T> {
    /// The properties that the choice depends on.
    pub terms: DeploymentSpec,
    /// Time limit of an attempt, instead of the policy's.
    pub timeout: Option<Duration>,
    /// Time limit until the first event of a stream, instead of the policy's.
    pub stream_timeout: Option<Duration>,
    /// Cooldown after failures, instead of the policy's.
    pub cooldown: Option<Duration>,
    /// Number of retries, instead of the policy's.
    pub retries: Option<u32>,
    /// The group that gets copies of its requests.
    pub shadow: Option<config::Shadow>,
    /// `tags` of the entry.
    pub tags: Vec<String>,
    /// It gets no health checks.
    pub unchecked: bool,
    /// Its target.
    pub target: T,
    /// Its state.
    pub state: Arc<State>,
}

impl<T: Target> Deployment<T> {
    fn new(d: &config::Deployment, target: T, state: Arc<State>) -> Self {
        let ours = !matches!(d.target, config::Target::Remote(_));
        let (input, output) = (d.info.input_cost_per_token, d.info.output_cost_per_token);
        let priced = input.or(output).map(|_| input.unwrap_or(0.0) + output.unwrap_or(0.0));
        Self {
            terms: DeploymentSpec {
                id: d.id.clone(),
                order: d.order.unwrap_or(u32::MAX),
                weight: d.weight,
                limits: Limits { rpm: d.rpm, tpm: d.tpm, max_parallel: d.max_parallel_requests },
                window_tokens: target.window_tokens().or(d.info.max_input_tokens),
                output_tokens: d.info.max_output_tokens,
                cost: priced.or(ours.then_some(0.0)),
            },
            timeout: d.timeout,
            stream_timeout: d.stream_timeout,
            cooldown: d.cooldown_time,
            retries: d.num_retries,
            shadow: d.shadow.clone(),
            tags: d.tags.clone(),
            unchecked: d.info.unchecked,
            target,
            state,
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.terms.id
    }
}

/// A group of deployments.
#[derive(Debug)]
pub struct Group<T> {
    /// Its name.
    pub name: GroupName,
    /// Its strategy.
    pub strategy: Strategy,
    /// Its deployments.
    pub deployments: Vec<Arc<Deployment<T>>>,
    /// Why deployments were left out.
    pub skipped: Vec<String>,
    /// Requests that wait for a permit, in order of arrival; the holder of the lock is next.
    pub(crate) line: tokio::sync::Mutex<()>,
    /// Their number.
    pub(crate) waiting: AtomicUsize,
    /// Held while a cooldown is decided: two at a time could leave no deployment.
    pub(crate) cooling: Mutex<()>,
}

impl<T> Group<T> {
    /// The requested name, if the group has several models.
    pub fn model<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.name.is_wildcard().then_some(name)
    }

    /// The largest context of its deployments; `None` if one is unknown.
    pub fn window_tokens(&self) -> Option<u64> {
        let windows: Option<Vec<u64>> = self.deployments.iter().map(|d| d.terms.window_tokens).collect();
        windows?.into_iter().max()
    }
}

/// The meaning of a name.
#[derive(Debug)]
pub enum Resolved<'a, T> {
    /// A group.
    Group {
        /// The group.
        group: &'a Arc<Group<T>>,
        /// The name that matched, after aliases.
        name: &'a str,
        /// How it was found.
        by: By,
    },
    /// A cascade.
    Cascade {
        /// The cascade.
        cascade: &'a Arc<Cascade>,
        /// How it was found.
        by: By,
    },
    /// An unknown name.
    Unknown,
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TableError(pub String);

/// All names and their meanings.
#[derive(Debug)]
pub struct Table<T> {
    groups: HashMap<String, Arc<Group<T>>>,
    /// Groups with wildcards in their names; the most specific first.
    wildcards: Vec<Arc<Group<T>>>,
    aliases: HashMap<String, config::Alias>,
    cascades: HashMap<String, Arc<Cascade>>,
    /// In the configuration's order.
    names: Vec<String>,
    /// Groups whose broken streams another deployment can continue.
    continuable: HashSet<String>,
    /// Cascades whose prerouter does not match the embeddings.
    mismatched: Mutex<HashSet<String>>,
    /// What several processes share, if they do.
    pub(crate) shared: Option<Arc<dyn Shared>>,
    /// Settings for all groups.
    pub policy: Policy,
    /// Health checks.
    pub health: HealthChecks,
}

/// Maximum depth of aliases of aliases.
const ALIASES_MAX: usize = 8;

/// The groups of the configuration, in its order.
fn groups<T: Target>(
    config: &Config,
    states: &States,
    target: &mut impl FnMut(&config::Deployment) -> Result<T, String>,
) -> Result<Vec<Group<T>>, TableError> {
    let mut groups: Vec<Group<T>> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let mut group = |groups: &mut Vec<Group<T>>, name: &GroupName| {
        *by_name.entry(name.as_str().to_string()).or_insert_with(|| {
            groups.push(Group {
                name: name.clone(),
                strategy: config.router.strategy,
                deployments: Vec::new(),
                skipped: Vec::new(),
                line: tokio::sync::Mutex::new(()),
                waiting: AtomicUsize::new(0),
                cooling: Mutex::new(()),
            });
            groups.len() - 1
        })
    };
    let mut ids = HashSet::new();
    for d in &config.deployments {
        if !ids.insert(d.id.as_str()) {
            return Err(TableError(format!("two deployments have the id '{}'", d.id)));
        }
        let made = target(d).map_err(|e| TableError(format!("'{}': {e}", d.group)))?;
        let at = group(&mut groups, &d.group);
        groups[at].deployments.push(Arc::new(Deployment::new(d, made, states.get(&d.id))));
    }
    for s in &config.skipped {
        let at = group(&mut groups, &s.group);
        groups[at].skipped.push(s.reason.clone());
    }
    Ok(groups)
}

impl<T: Target> Table<T> {
    /// The table of `config`; `states` has the states of existing deployments. `target` creates the target of a deployment.
    ///
    /// # Errors
    /// An undefined name, a duplicate id, or an error of `target`.
    pub fn new(
        config: &Config,
        states: &States,
        mut target: impl FnMut(&config::Deployment) -> Result<T, String>,
    ) -> Result<Self, TableError> {
        let groups = groups(config, states, &mut target)?;
        let mut table = Self {
            groups: HashMap::new(),
            wildcards: Vec::new(),
            aliases: config.router.aliases.iter().map(|a| (a.name.clone(), a.clone())).collect(),
            cascades: config.cascades.iter().map(|c| (c.name.clone(), Arc::new(c.clone()))).collect(),
            names: Vec::new(),
            continuable: HashSet::new(),
            mismatched: Mutex::default(),
            shared: None,
            policy: Policy::of(&config.router),
            health: config.health.clone(),
        };
        for group in groups.into_iter().map(Arc::new) {
            if group.name.is_wildcard() {
                table.wildcards.push(Arc::clone(&group));
            } else if !group.deployments.is_empty() {
                // Deployments that were left out cannot be chosen.
                table.names.push(group.name.as_str().to_string());
            }
            table.groups.insert(group.name.as_str().to_string(), group);
        }
        table.wildcards.sort_by_key(|g| std::cmp::Reverse(g.name.specificity()));
        table.add_cascades_and_aliases(config);
        table.check()?;
        table.continuable = table.groups.keys().filter(|name| table.can_continue(name)).cloned().collect();
        Ok(table)
    }

    /// Adds their names to those that are listed, except hidden aliases and those of groups without deployments.
    fn add_cascades_and_aliases(&mut self, config: &Config) {
        let offered = |name: &str| !self.groups.get(name).is_some_and(|g| g.deployments.is_empty());
        let aliases =
            config.router.aliases.iter().filter(|a| !a.hidden && offered(&a.group)).map(|a| &a.name);
        for name in config.cascades.iter().map(|c| &c.name).chain(aliases) {
            if !self.names.contains(name) {
                self.names.push(name.clone());
            }
        }
    }

    /// Whether a deployment of the group, or of its fallbacks, can continue an answer that broke off at another one.
    fn can_continue(&self, name: &str) -> bool {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut queue = vec![name];
        let (mut deployments, mut continues) = (0, false);
        while let Some(name) = queue.pop() {
            if !seen.insert(name) {
                continue;
            }
            // A group with a wildcard counts as itself here.
            let group = self.groups.get(name).or_else(|| match self.resolve(name) {
                Resolved::Group { group, .. } => Some(group),
                _ => None,
            });
            if let Some(group) = group {
                deployments += group.deployments.len();
                continues |= group.deployments.iter().any(|d| d.target.may_continue());
                let to = self.policy.fallbacks.after(group.name.as_str(), FailureKind::Server);
                queue.extend(to.iter().map(String::as_str));
            } else if let Resolved::Cascade { cascade, .. } = self.resolve(name) {
                queue.extend([cascade.fast.as_str(), cascade.strong.as_str()]);
            }
        }
        // The deployment that broke off is not tried again.
        continues && deployments > 1
    }

    /// Checks that every name that is used is defined.
    fn check(&self) -> Result<(), TableError> {
        let unknown = |what: String, name: &str| {
            TableError(format!("{what} '{name}', which is not defined; names are: {}", self.known()))
        };
        let is_group = |name: &str| matches!(self.resolve(name), Resolved::Group { .. });
        for alias in self.aliases.values() {
            if matches!(self.resolve(&alias.name), Resolved::Unknown) {
                return Err(unknown(format!("the alias '{}' refers to", alias.name), &alias.group));
            }
        }
        for cascade in self.cascades.values() {
            if let Some(name) = [&cascade.fast, &cascade.strong].into_iter().find(|name| !is_group(name)) {
                return Err(unknown(format!("the cascade '{}' uses", cascade.name), name));
            }
        }
        let leads = |name: &str| !matches!(self.resolve(name), Resolved::Unknown);
        let f = &self.policy.fallbacks;
        for fallback in f.all() {
            if let Some(name) = fallback.to.iter().find(|name| !leads(name)) {
                return Err(unknown(format!("'{}' falls back to", fallback.group), name));
            }
        }
        if let Some(name) = f.default.iter().find(|name| !leads(name)) {
            return Err(unknown("'default_fallbacks' has".into(), name));
        }
        for (_, d) in self.deployments() {
            if let Some(shadow) = d.shadow.as_ref().filter(|s| !leads(&s.group)) {
                return Err(unknown(format!("the silent model of '{}' is", d.id()), &shadow.group));
            }
        }
        Ok(())
    }
}

impl<T> Table<T> {
    /// Whether a prerouter of `cascade` that does not match the embeddings was not logged yet.
    pub(crate) fn is_first_mismatch(&self, cascade: &str) -> bool {
        let mut known = self.mismatched.lock().unwrap_or_else(PoisonError::into_inner);
        !known.contains(cascade) && known.insert(cascade.to_string())
    }

    /// The meaning of `name`: a group with exactly this name, else an alias, a cascade, or the most specific group with a wildcard.
    pub fn resolve<'a>(&'a self, name: &'a str) -> Resolved<'a, T> {
        let (mut name, mut by) = (name, By::Name);
        for _ in 0..ALIASES_MAX {
            // A name with a wildcard is a pattern, not a model.
            if let Some(group) = self.groups.get(name).filter(|g| !g.name.is_wildcard()) {
                return Resolved::Group { group, name, by };
            }
            let Some(alias) = self.aliases.get(name) else { break };
            (name, by) = (&alias.group, By::Alias);
        }
        if let Some(cascade) = self.cascades.get(name) {
            return Resolved::Cascade { cascade, by };
        }
        match self.wildcards.iter().find(|g| g.name.matches(name)) {
            Some(group) => Resolved::Group { group, name, by: By::Wildcard },
            None => Resolved::Unknown,
        }
    }

    /// The names for lists of models, without wildcards and hidden aliases.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The names, for an error.
    pub fn known(&self) -> String {
        let stars = self.wildcards.iter().map(|g| g.name.as_str());
        let names: Vec<&str> = self.names.iter().map(String::as_str).chain(stars).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Whether a stream of this group may be continued by another deployment.
    pub fn continues_streams(&self, group: &Group<T>) -> bool {
        self.continuable.contains(group.name.as_str())
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group<T>>> {
        self.groups.values()
    }

    /// All deployments, with their groups.
    pub fn deployments(&self) -> impl Iterator<Item = (&Arc<Group<T>>, &Arc<Deployment<T>>)> {
        self.groups.values().flat_map(|g| g.deployments.iter().map(move |d| (g, d)))
    }

    /// Whether a deployment of this id is in it.
    pub fn has(&self, id: &str) -> bool {
        self.deployments().any(|(_, d)| d.terms.id == id)
    }
}
