//! Whether the names that stand in a configuration are those of something. Called by `read` when all else is right.

use crate::problem::{nearest, quoted};
use crate::reader::Reader;
use crate::yaml::{Node, Value};
use crate::{Config, Fallback, Span};

/// Checks all of them.
pub(crate) fn names(reader: &Reader, root: &Node, config: &Config) {
    let at = |keys: &[&str]| span(root, keys).clone();
    let routes = Routes::new(config);
    if config.deployments.is_empty() {
        let why = match config.skipped.first() {
            Some(skipped) => {
                format!("no model is left: '{}' is left out, for {}", skipped.group, skipped.reason)
            }
            None => "there is no model: write model_list (or processes)".into(),
        };
        reader.wrong(&at(&["model_list"]), why);
        return;
    }
    let target = |span: &Span, key: &str, name: &str| {
        if !routes.is_known(name) {
            let near =
                nearest(name, routes.names()).map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
            reader.wrong(span, format!("{key}: there is no model_name {}{near}", quoted(name)));
        }
    };
    let router = &config.router;
    for alias in &router.aliases {
        let span = at(&["router_settings", "model_group_alias", &alias.name]);
        let key = format!("the alias '{}'", alias.name);
        if router.aliases.iter().any(|other| other.name == alias.group) {
            reader.wrong(
                &span,
                format!("{key} means '{}', which is an alias too: name the group", alias.group),
            );
        } else {
            target(&span, &key, &alias.group);
        }
        if config.deployments.iter().any(|d| d.group.as_str() == alias.name) {
            reader.note(
                &span,
                "model_group_alias",
                format!("'{}' is a model_name too, and that counts", alias.name),
            );
        }
    }
    let lists: [(&str, &[Fallback]); 3] = [
        ("fallbacks", &router.fallbacks),
        ("context_window_fallbacks", &router.context_window_fallbacks),
        ("content_policy_fallbacks", &router.content_policy_fallbacks),
    ];
    for (key, list) in lists {
        let section = if span_of(root, &["router_settings", key]).is_some() {
            "router_settings"
        } else {
            "litellm_settings"
        };
        let span = at(&[section, key]);
        for (i, fallback) in list.iter().enumerate() {
            if list[..i].iter().any(|before| before.group == fallback.group) {
                let text = format!("'{}' stands twice; the first counts", fallback.group);
                reader.note(&span, key, text);
            }
            fallback.to.iter().for_each(|to| target(&span, key, to));
            if !fallback.group.is_wildcard() && !routes.is_known(fallback.group.as_str()) {
                let text = format!("there is no model_name '{}' that could fall back", fallback.group);
                reader.note(&span, key, text);
            }
        }
    }
    let section = if span_of(root, &["router_settings", "default_fallbacks"]).is_some() {
        "router_settings"
    } else {
        "litellm_settings"
    };
    for to in &router.default_fallbacks {
        target(&at(&[section, "default_fallbacks"]), "default_fallbacks", to);
    }
    for (group, _) in &router.group_retry_policy {
        target(
            &at(&["router_settings", "model_group_retry_policy", group]),
            "model_group_retry_policy",
            group,
        );
    }
    for deployment in &config.deployments {
        if let Some(shadow) = &deployment.shadow {
            target(&deployment.span, "silent_model", &shadow.group);
            if deployment.group.matches(&shadow.group) && !deployment.group.is_wildcard() {
                reader.wrong(
                    &deployment.span,
                    format!("silent_model: '{}' would copy its requests to itself", shadow.group),
                );
            }
        }
    }
    cascades(reader, config, &routes, &target);
}

fn cascades(reader: &Reader, config: &Config, routes: &Routes, target: &dyn Fn(&Span, &str, &str)) {
    for (i, cascade) in config.cascades.iter().enumerate() {
        for (key, group) in [("fast", &cascade.fast), ("strong", &cascade.strong)] {
            target(&cascade.span, &format!("the cascade '{}': {key}", cascade.name), group);
            if config.cascades.iter().any(|c| c.name == *group) && !routes.groups.contains(&group.as_str()) {
                reader.wrong(
                    &cascade.span,
                    format!("the cascade '{}': {key} is a cascade too; name a group", cascade.name),
                );
            }
        }
        if let Some(embed) = cascade.prerouter.as_ref().and_then(|p| p.embed.as_ref()) {
            target(&cascade.span, &format!("the cascade '{}': prerouter.embed", cascade.name), embed);
        }
        let twice = config.cascades[..i].iter().any(|c| c.name == cascade.name);
        if twice || routes.groups.contains(&cascade.name.as_str()) {
            reader.wrong(
                &cascade.span,
                format!(
                    "'{}' is the name of something else already: take another for the cascade",
                    cascade.name
                ),
            );
        }
    }
}

/// What clients can ask for.
struct Routes<'a> {
    config: &'a Config,
    /// Names of groups, those that are left out included: what names them is not wrong.
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

/// Where a key stands, or what is above it.
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
