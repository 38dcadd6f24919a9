//! Checks that every name that a configuration uses is defined.

use crate::problem::{nearest, quoted};
use crate::reader::Reader;
use crate::yaml::{Node, Value};
use crate::{Config, Fallback, Span};

/// Checks all names.
pub(crate) fn names(reader: &Reader, root: &Node, config: &Config) {
    if config.deployments.is_empty() {
        let why = match config.skipped.first() {
            Some(skipped) => {
                format!("no model is left: '{}' is left out: {}", skipped.group, skipped.reason)
            }
            None => "there is no model: add model_list (or processes)".into(),
        };
        reader.wrong(span(root, &["model_list"]), why);
        return;
    }
    let check = Check { reader, root, config, routes: Routes::new(config) };
    check.aliases();
    check.fallbacks();
    for (group, _) in &config.router.group_retry_policy {
        let key = "model_group_retry_policy";
        check.target(span(root, &["router_settings", key, group]), key, group);
    }
    check.shadows();
    check.cascades();
}

/// Leaves out fallbacks to names that are not defined.
pub(crate) fn known_fallbacks(config: &mut Config) {
    let routes = Routes::new(config);
    let known = |list: &[Fallback]| -> Vec<Fallback> {
        let fallback = |f: &Fallback| {
            let to = f.to.iter().filter(|to| routes.is_known(to)).cloned().collect();
            Fallback { group: f.group.clone(), to }
        };
        list.iter().map(fallback).filter(|f| !f.to.is_empty()).collect()
    };
    let router = &config.router;
    let lists = [&router.fallbacks, &router.context_window_fallbacks, &router.content_policy_fallbacks]
        .map(|l| known(l));
    let default = router.default_fallbacks.iter().filter(|to| routes.is_known(to)).cloned().collect();
    let [general, context_window, content_policy] = lists;
    config.router.fallbacks = general;
    config.router.context_window_fallbacks = context_window;
    config.router.content_policy_fallbacks = content_policy;
    config.router.default_fallbacks = default;
}

struct Check<'a> {
    reader: &'a Reader<'a>,
    root: &'a Node,
    config: &'a Config,
    routes: Routes<'a>,
}

impl Check<'_> {
    /// Reports `name`, the value of `key`, if it is not defined.
    fn target(&self, span: &Span, key: &str, name: &str) {
        if !self.routes.is_known(name) {
            let near = nearest(name, self.routes.names());
            let near = near.map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
            self.reader.wrong(span, format!("{key}: there is no model_name {}{near}", quoted(name)));
        }
    }

    /// Notes that a fallback is not defined: [`known_fallbacks`] leaves it out.
    fn fallback(&self, span: &Span, key: &str, name: &str) {
        if !self.routes.is_known(name) {
            let near = nearest(name, self.routes.names());
            let near = near.map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
            let text = format!("there is no model_name {}{near}: ignored", quoted(name));
            self.reader.note(span, key, text);
        }
    }

    fn aliases(&self) {
        let aliases = &self.config.router.aliases;
        for alias in aliases {
            let span = span(self.root, &["router_settings", "model_group_alias", &alias.name]);
            let key = format!("the alias '{}'", alias.name);
            if aliases.iter().any(|other| other.name == alias.group) {
                self.reader.wrong(
                    span,
                    format!("{key} refers to '{}', which is an alias too: name the group", alias.group),
                );
            } else {
                self.target(span, &key, &alias.group);
            }
            if self.config.deployments.iter().any(|d| d.group.as_str() == alias.name) {
                self.reader.note(
                    span,
                    "model_group_alias",
                    format!("'{}' is also a model_name, which takes precedence", alias.name),
                );
            }
        }
    }

    fn fallbacks(&self) {
        let router = &self.config.router;
        let lists: [(&str, &[Fallback]); 3] = [
            ("fallbacks", &router.fallbacks),
            ("context_window_fallbacks", &router.context_window_fallbacks),
            ("content_policy_fallbacks", &router.content_policy_fallbacks),
        ];
        for (key, list) in lists {
            let span = self.span_of_router_key(key);
            for (i, fallback) in list.iter().enumerate() {
                if list[..i].iter().any(|before| before.group == fallback.group) {
                    let text = format!("'{}' is listed twice; the first entry is used", fallback.group);
                    self.reader.note(span, key, text);
                }
                fallback.to.iter().for_each(|to| self.fallback(span, key, to));
                if !fallback.group.is_wildcard() && !self.routes.is_known(fallback.group.as_str()) {
                    let text = format!("there is no model_name '{}' that could fall back", fallback.group);
                    self.reader.note(span, key, text);
                }
            }
        }
        let key = "default_fallbacks";
        router.default_fallbacks.iter().for_each(|to| self.fallback(self.span_of_router_key(key), key, to));
    }

    /// The place of a key that may be in `router_settings` or in `litellm_settings`.
    fn span_of_router_key(&self, key: &str) -> &Span {
        span_of(self.root, &["router_settings", key])
            .unwrap_or_else(|| span(self.root, &["litellm_settings", key]))
    }

    fn shadows(&self) {
        for deployment in &self.config.deployments {
            let Some(shadow) = &deployment.shadow else { continue };
            self.target(&deployment.span, "silent_model", &shadow.group);
            if deployment.group.matches(&shadow.group) && !deployment.group.is_wildcard() {
                self.reader.wrong(
                    &deployment.span,
                    format!("silent_model: '{}' would copy its requests to itself", shadow.group),
                );
            }
        }
    }

    fn cascades(&self) {
        let cascades = &self.config.cascades;
        for (i, cascade) in cascades.iter().enumerate() {
            let (span, name) = (&cascade.span, &cascade.name);
            for (key, group) in [("fast", &cascade.fast), ("strong", &cascade.strong)] {
                self.target(span, &format!("the cascade '{name}': {key}"), group);
                if cascades.iter().any(|c| c.name == *group) && !self.routes.groups.contains(&group.as_str())
                {
                    self.reader
                        .wrong(span, format!("the cascade '{name}': {key} is a cascade too; name a group"));
                }
            }
            if let Some(embed) = cascade.prerouter.as_ref().and_then(|p| p.embed.as_ref()) {
                self.target(span, &format!("the cascade '{name}': prerouter.embed"), embed);
            }
            let twice = cascades[..i].iter().any(|c| c.name == *name);
            if twice || self.routes.groups.contains(&name.as_str()) {
                self.reader.wrong(
                    span,
                    format!("the name '{name}' is already in use: choose another one for the cascade"),
                );
            }
        }
    }
}

/// All names that clients can request.
struct Routes<'a> {
    config: &'a Config,
    /// Names of groups, including those that are left out: a reference to them is not an error.
    groups: Vec<&'a str>,
}

impl<'a> Routes<'a> {
    fn new(config: &'a Config) -> Self {
        let groups = config
            .deployments
            .iter()
            .map(|d| d.group.as_str())
            .chain(config.skipped.iter().map(|s| s.group.as_str()));
        Self { config, groups: groups.collect() }
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        let others = self.config.cascades.iter().map(|c| c.name.as_str());
        let aliases = self.config.router.aliases.iter().map(|a| a.name.as_str());
        self.groups.clone().into_iter().chain(others).chain(aliases)
    }

    fn is_known(&self, name: &str) -> bool {
        let wildcard = self.config.deployments.iter().any(|d| d.group.is_wildcard() && d.group.matches(name))
            || self.config.skipped.iter().any(|s| s.group.is_wildcard() && s.group.matches(name));
        wildcard || self.names().any(|n| n == name)
    }
}

/// The place of a key, or of its closest parent.
fn span<'a>(root: &'a Node, keys: &[&str]) -> &'a Span {
    (0..=keys.len()).rev().find_map(|n| span_of(root, &keys[..n])).unwrap_or(&root.span)
}

fn span_of<'a>(root: &'a Node, keys: &[&str]) -> Option<&'a Span> {
    let mut node = root;
    let mut span = &root.span;
    for key in keys {
        let Value::Map(entries) = &node.value else { return None };
        let entry = entries.iter().find(|e| e.key == *key)?;
        (node, span) = (&entry.node, &entry.span);
    }
    Some(span)
}
