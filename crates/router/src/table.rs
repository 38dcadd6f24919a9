//! Names to groups of deployments: what a configuration means, made once and never changed. A new configuration is a new
//! table; requests that run keep theirs. Built by the server from the configuration; looked at by `dispatch`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cascade::Cascade;
use crate::choose::{Strategy, Terms};
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::state::{State, States};
use crate::trace::By;

/// What a table is made of.
#[derive(Debug)]
pub struct Plan<T> {
    /// Groups, by unique name; a name may hold stars.
    pub groups: Vec<GroupPlan<T>>,
    /// Other names for groups and cascades.
    pub aliases: Vec<Alias>,
    /// Names behind which a fast and a strong group stand.
    pub cascades: Vec<Cascade>,
    /// What holds for all groups.
    pub policy: Policy,
}

impl<T> Default for Plan<T> {
    fn default() -> Self {
        Self { groups: Vec::new(), aliases: Vec::new(), cascades: Vec::new(), policy: Policy::default() }
    }
}

/// Another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// It.
    pub name: String,
    /// What it stands for.
    pub to: String,
    /// Not in lists of models.
    pub hidden: bool,
}

/// A group that is to be.
#[derive(Debug)]
pub struct GroupPlan<T> {
    /// What clients ask for.
    pub name: String,
    /// How one of its deployments is chosen.
    pub strategy: Strategy,
    /// Who answers; at least one.
    pub members: Vec<Member<T>>,
}

/// A deployment that is to be.
#[derive(Debug)]
pub struct Member<T> {
    /// What the choice depends on.
    pub terms: Terms,
    /// Most time for an answer; for streams until the first event. Instead of the policy's.
    pub timeout: Option<Duration>,
    /// Most time to the first event of a stream, and between two. Instead of the policy's.
    pub stream_timeout: Option<Duration>,
    /// How long it is left alone after failures. Instead of the policy's.
    pub cooldown: Option<Duration>,
    /// Retries. Instead of the policy's.
    pub retries: Option<u32>,
    /// A group that gets a copy of its requests, and whose answers nobody sees (`silent_model`).
    pub shadow: Option<String>,
    /// Who answers.
    pub target: T,
}

impl<T> Member<T> {
    /// A deployment of which nothing is said but its id.
    pub fn new(id: impl Into<String>, target: T) -> Self {
        Self {
            terms: Terms { id: id.into(), ..Terms::default() },
            timeout: None,
            stream_timeout: None,
            cooldown: None,
            retries: None,
            shadow: None,
            target,
        }
    }
}

/// A deployment at work.
#[derive(Debug)]
pub struct Deployment<T> {
    /// As it was planned.
    pub plan: Member<T>,
    /// What is known of it.
    pub state: Arc<State>,
}

impl<T> Deployment<T> {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.plan.terms.id
    }
}

/// A group at work.
#[derive(Debug)]
pub struct Group<T> {
    /// What clients ask for.
    pub name: String,
    /// How one is chosen.
    pub strategy: Strategy,
    /// Who answers.
    pub deployments: Vec<Arc<Deployment<T>>>,
    /// Held while it is decided whether one is left alone: two at a time could leave nobody.
    pub(crate) cooling: Mutex<()>,
}

impl<T> Group<T> {
    /// The longest context of its deployments; `None` if that of one is not known.
    pub fn window_tokens(&self) -> Option<u64> {
        let windows: Option<Vec<u64>> = self.deployments.iter().map(|d| d.plan.terms.window_tokens).collect();
        windows?.into_iter().max()
    }
}

/// What a name stands for.
#[derive(Debug)]
pub enum Resolved<'a, T> {
    /// A group.
    Group {
        /// It.
        group: &'a Arc<Group<T>>,
        /// What the stars of its name stand for.
        captures: Arc<[String]>,
        /// How it was found.
        by: By,
    },
    /// A cascade.
    Cascade {
        /// It.
        cascade: &'a Arc<Cascade>,
        /// How it was found.
        by: By,
    },
    /// Nothing.
    Unknown,
}

/// A plan that can not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

/// All names, and what they stand for.
#[derive(Debug)]
pub struct Table<T> {
    groups: HashMap<String, Arc<Group<T>>>,
    /// What says most, first.
    wildcards: Vec<(Pattern, Arc<Group<T>>)>,
    aliases: HashMap<String, Alias>,
    cascades: HashMap<String, Arc<Cascade>>,
    /// In the configuration's order.
    names: Vec<String>,
    /// What holds for all groups.
    pub policy: Policy,
}

/// Aliases of aliases are followed so far.
const ALIASES_MAX: usize = 8;

impl<T> Table<T> {
    /// A table of this plan, with what `states` knows of the deployments already.
    ///
    /// # Errors
    /// A name that stands for two things or for nothing, a group of nobody, an id that is there twice.
    pub fn new(plan: Plan<T>, states: &States) -> Result<Self, PlanError> {
        let mut table = Self {
            groups: HashMap::new(),
            wildcards: Vec::new(),
            aliases: HashMap::new(),
            cascades: HashMap::new(),
            names: Vec::new(),
            policy: plan.policy,
        };
        let mut ids = HashSet::new();
        for group in plan.groups {
            if group.members.is_empty() {
                return Err(PlanError(format!("nobody answers for '{}': give it a deployment", group.name)));
            }
            if let Some(twice) = group.members.iter().find(|m| !ids.insert(m.terms.id.clone())) {
                return Err(PlanError(format!("two deployments have the id '{}'", twice.terms.id)));
            }
            let deployments = group.members.into_iter().map(|plan| {
                let state = states.get(&plan.terms.id);
                Arc::new(Deployment { plan, state })
            });
            let deployments = deployments.collect();
            let made = Arc::new(Group {
                name: group.name.clone(),
                strategy: group.strategy,
                deployments,
                cooling: Mutex::new(()),
            });
            if let Some(pattern) = Pattern::new(&group.name) {
                table.wildcards.push((pattern, Arc::clone(&made)));
            } else {
                table.names.push(group.name.clone());
            }
            if table.groups.insert(group.name.clone(), made).is_some() {
                return Err(PlanError(format!("two groups have the name '{}'", group.name)));
            }
        }
        table.wildcards.sort_by_key(|(p, _)| std::cmp::Reverse(p.literal_bytes()));
        for cascade in plan.cascades {
            let name = cascade.name.clone();
            table.names.push(name.clone());
            if table.groups.contains_key(&name) || table.cascades.contains_key(&name) {
                return Err(PlanError(format!("two groups have the name '{name}'")));
            }
            table.cascades.insert(name, Arc::new(cascade));
        }
        for alias in plan.aliases {
            if !alias.hidden && !table.names.contains(&alias.name) {
                table.names.push(alias.name.clone());
            }
            table.aliases.insert(alias.name.clone(), alias);
        }
        table.check()?;
        states.keep(|id| ids.contains(id));
        Ok(table)
    }

    /// Every name that is used stands for something.
    fn check(&self) -> Result<(), PlanError> {
        let unknown = |what: String, name: &str| {
            PlanError(format!("{what} '{name}', which is no group; there are: {}", self.known()))
        };
        let is_group = |name: &str| matches!(self.resolve(name), Resolved::Group { .. });
        for alias in self.aliases.values() {
            if matches!(self.resolve(&alias.name), Resolved::Unknown) {
                return Err(unknown(format!("the alias '{}' stands for", alias.name), &alias.to));
            }
        }
        for cascade in self.cascades.values() {
            if let Some(name) = cascade.groups().find(|name| !is_group(name)) {
                return Err(unknown(format!("the cascade '{}' asks", cascade.name), name));
            }
        }
        let f = &self.policy.fallbacks;
        for (from, to) in [&f.general, &f.context_window, &f.content_policy].into_iter().flatten() {
            if let Some(name) = to.iter().find(|name| !is_group(name)) {
                return Err(unknown(format!("'{from}' falls back to"), name));
            }
        }
        if let Some(name) = f.default.iter().find(|name| !is_group(name)) {
            return Err(unknown("'default_fallbacks' has".into(), name));
        }
        let shadows = self.deployments().filter_map(|(_, d)| d.plan.shadow.as_ref().map(|s| (d, s)));
        for (d, name) in shadows {
            if !is_group(name) {
                return Err(unknown(format!("the silent model of '{}' is", d.id()), name));
            }
        }
        Ok(())
    }

    /// What `name` stands for: an alias, else exactly this name, else the name with stars that says most.
    pub fn resolve(&self, name: &str) -> Resolved<'_, T> {
        let mut name = name;
        let mut by = By::Name;
        for _ in 0..ALIASES_MAX {
            let Some(alias) = self.aliases.get(name).filter(|a| a.to != name) else { break };
            (name, by) = (&alias.to, By::Alias);
        }
        if let Some(cascade) = self.cascades.get(name) {
            return Resolved::Cascade { cascade, by };
        }
        // A group with stars, called by its own name: what fallbacks do.
        if let Some(group) = self.groups.get(name).filter(|_| !name.contains('*')) {
            return Resolved::Group { group, captures: Arc::new([]), by };
        }
        let matching = self.wildcards.iter().find_map(|(p, g)| p.captures(name).map(|c| (g, c)));
        match matching {
            Some((group, captures)) => {
                let captures = captures.into_iter().map(String::from).collect();
                Resolved::Group { group, captures, by: By::Wildcard }
            }
            None => Resolved::Unknown,
        }
    }

    /// The names that clients may ask for, for lists of models: those with stars and hidden aliases are not in it.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The names, for an error.
    pub fn known(&self) -> String {
        let stars = self.wildcards.iter().map(|(p, _)| p.text());
        let names: Vec<&str> = self.names.iter().map(String::as_str).chain(stars).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// All deployments, with their groups.
    pub fn deployments(&self) -> impl Iterator<Item = (&Arc<Group<T>>, &Arc<Deployment<T>>)> {
        self.groups.values().flat_map(|g| g.deployments.iter().map(move |d| (g, d)))
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group<T>>> {
        self.groups.values()
    }
}
