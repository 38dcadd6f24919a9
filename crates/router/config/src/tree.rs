//! The routes of each name as a tree. Printed by `octet config check`.

use std::time::Duration;

use crate::{
    Cascade, Condition, Confidence, Config, Deployment, Fallback, RouterSettings, Side, Strategy, Target,
    printable,
};

impl Config {
    /// All names that clients can use, and their deployments.
    pub fn tree(&self) -> String {
        let mut out = String::new();
        let mut groups: Vec<&str> = Vec::new();
        for name in self.deployments.iter().map(|d| d.group.as_str()) {
            if !groups.contains(&name) {
                groups.push(name);
            }
        }
        for group in &groups {
            self.group(group, &mut out);
        }
        for cascade in &self.cascades {
            cascade_lines(cascade).draw(&mut out);
        }
        for skipped in &self.skipped {
            let mut rest = vec![format!("left out: {}", skipped.reason)];
            // If all deployments of a name were left out, its fallbacks answer.
            if !groups.contains(&skipped.group.as_str()) {
                let lines = fallback_lines(skipped.group.as_str(), &self.router);
                rest.extend(lines.into_iter().filter(|line| line.starts_with("on errors")));
            }
            Lines { head: skipped.group.to_string(), rest }.draw(&mut out);
        }
        let r = &self.router;
        out += &format!(
            "{} · {} · {} · {}",
            count(r.num_retries, "retry", "retries"),
            format_args!("at most {}", count(r.max_fallbacks, "fallback", "fallbacks")),
            format_args!("{} a request", seconds(r.timeout)),
            if r.disable_cooldowns {
                "no cooldown".into()
            } else {
                format!("cooldown {}", seconds(r.cooldown_time))
            },
        );
        out += if self.server.master_key.is_some() { " · a key is needed\n" } else { "\n" };
        out
    }

    fn group(&self, name: &str, out: &mut String) {
        let mut members: Vec<&Deployment> =
            self.deployments.iter().filter(|d| d.group.as_str() == name).collect();
        members.sort_by_key(|d| d.order.unwrap_or(u32::MAX));
        let others: Vec<&str> =
            self.router.aliases.iter().filter(|a| a.group == name).map(|a| a.name.as_str()).collect();
        let mut head = name.to_string();
        if !others.is_empty() {
            head += &format!(" (also {})", others.join(", "));
        }
        if members.len() > 1 {
            head += &format!("  {}", self.router.strategy.name());
        }
        let mut node = Lines { head, rest: Vec::new() };
        for tier in members.chunk_by(|a, b| a.order == b.order) {
            let shares = shares(tier, self.router.strategy);
            for (deployment, share) in tier.iter().zip(shares) {
                let share = share.map_or(String::new(), |s| format!("{:>3.0}%  ", s * 100.0));
                node.rest.push(format!("{share}{}{}", target(&deployment.target), limits(deployment)));
                if let Some(shadow) = &deployment.shadow {
                    let part = if shadow.share < 1.0 {
                        format!("{:.0}% of the requests", shadow.share * 100.0)
                    } else {
                        "each request".into()
                    };
                    node.rest.push(format!("{} gets a copy of {part}", shadow.group));
                }
            }
        }
        node.rest.extend(fallback_lines(name, &self.router));
        node.draw(out);
    }
}

/// A line and its children.
struct Lines {
    head: String,
    rest: Vec<String>,
}

impl Lines {
    fn draw(&self, out: &mut String) {
        *out += &format!("{}\n", printable(&self.head));
        for (i, line) in self.rest.iter().enumerate() {
            let branch = if i + 1 == self.rest.len() { "└─" } else { "├─" };
            *out += &format!("{branch} {}\n", printable(line));
        }
    }
}

/// The shares of deployments of the same order; `None` if they are not chosen at random.
fn shares(tier: &[&Deployment], strategy: Strategy) -> Vec<Option<f64>> {
    if tier.len() < 2 || strategy != Strategy::SimpleShuffle {
        return vec![None; tier.len()];
    }
    let all = |of: fn(&Deployment) -> Option<f64>| tier.iter().map(|d| of(d)).collect::<Option<Vec<f64>>>();
    let weights = if tier.iter().any(|d| d.weight.is_some()) {
        tier.iter().map(|d| d.weight.unwrap_or(1.0)).collect()
    } else {
        let rpm = all(|d| d.rpm.map(|n| n as f64));
        rpm.or_else(|| all(|d| d.tpm.map(|n| n as f64))).unwrap_or_else(|| vec![1.0; tier.len()])
    };
    let total: f64 = weights.iter().sum();
    // If all are 0, all are equal.
    weights.iter().map(|w| Some(if total > 0.0 { w / total } else { 1.0 / tier.len() as f64 })).collect()
}

fn target(target: &Target) -> String {
    match target {
        Target::Remote(r) => format!("{} {} at {}", r.provider.name(), r.model, r.api_base),
        Target::Local(l) => format!("{} in this process", l.model),
        Target::Process(p) => format!("the process {}, started on demand", p.process),
    }
}

fn limits(d: &Deployment) -> String {
    let mut details: Vec<String> = Vec::new();
    details.extend(d.order.map(|n| format!("order {n}")));
    details.extend(d.rpm.map(|n| format!("{n} rpm")));
    details.extend(d.tpm.map(|n| format!("{n} tpm")));
    details.extend(d.max_parallel_requests.map(|n| format!("{n} at once")));
    details.extend(d.timeout.map(seconds));
    details.extend(d.stream_timeout.map(|t| format!("first piece in {}", seconds(t))));
    details.extend(d.info.max_input_tokens.map(|n| format!("{n} tokens of prompt")));
    if details.is_empty() { String::new() } else { format!("  ({})", details.join(", ")) }
}

fn fallback_lines(name: &str, router: &RouterSettings) -> Vec<String> {
    let of = |list: &[Fallback]| {
        let own = list.iter().find(|f| f.group.as_str() == name);
        own.or_else(|| list.iter().find(|f| f.group.is_wildcard() && f.group.matches(name)))
            .map(|f| f.to.join(", "))
    };
    // A group is not a fallback of itself.
    let defaults: Vec<&str> =
        router.default_fallbacks.iter().map(String::as_str).filter(|d| *d != name).collect();
    let general = of(&router.fallbacks).or_else(|| (!defaults.is_empty()).then(|| defaults.join(", ")));
    let lines = [
        ("on errors", general),
        ("for a prompt that is too long", of(&router.context_window_fallbacks)),
        ("if the provider's content filter refuses", of(&router.content_policy_fallbacks)),
    ];
    lines.into_iter().filter_map(|(when, to)| Some(format!("{when}: {}", to?))).collect()
}

fn cascade_lines(cascade: &Cascade) -> Lines {
    let group = |side: Side| if side == Side::Fast { &cascade.fast } else { &cascade.strong };
    let mut rest = Vec::new();
    for rule in &cascade.rules {
        let when: Vec<String> = rule.when.iter().map(condition).collect();
        let check = if rule.check { ", if it is confident" } else { "" };
        rest.push(format!("{} for {}{check}  ({})", group(rule.to), when.join(" and "), rule.name));
    }
    if let Some(p) = &cascade.prerouter {
        rest.push(format!(
            "{} for prompts with a probability below {} (prerouter)",
            cascade.strong, p.threshold
        ));
    }
    rest.push(match cascade.confidence {
        None => format!("{} otherwise", cascade.fast),
        Some(c) => format!("{} otherwise, if it is confident ({})", cascade.fast, sureness(&c)),
    });
    if cascade.confidence.is_some() {
        rest.push(format!("{} if it is not", cascade.strong));
    }
    Lines { head: format!("{}  a cascade", cascade.name), rest }
}

/// The conditions of a confident answer.
fn sureness(c: &Confidence) -> String {
    let signal = c.signal.map(|t| {
        let bound = if t.signal.measure.rises() { "from" } else { "up to" };
        format!("{} {bound} {}", t.signal, t.threshold)
    });
    let mean = c.mean_logprob.map(|m| format!("mean log-probability from {m}"));
    let margin = c.margin.map(|m| format!("margin from {m}"));
    let measured: Vec<String> = signal.into_iter().chain(mean).chain(margin).collect();
    let mut all = Vec::new();
    if !measured.is_empty() {
        all.push(format!("{} over {} tokens", measured.join(", "), c.window));
    }
    all.extend(c.tool_calls.then(|| "its tool calls match their schemas".to_string()));
    all.extend(c.self_check.map(|p| format!("it calls its answer right with a probability of at least {p}")));
    all.join("; ")
}

fn condition(condition: &Condition) -> String {
    let with = |yes: &bool, what: &str| if *yes { what.to_string() } else { format!("no {what}") };
    match condition {
        Condition::MinTokens(n) => format!("{n} or more tokens"),
        Condition::MaxTokens(n) => format!("up to {n} tokens"),
        Condition::MinMessages(n) => format!("{n} or more messages"),
        Condition::MaxMessages(n) => format!("up to {n} messages"),
        Condition::Tools(yes) => with(yes, "tools"),
        Condition::Code(yes) => with(yes, "code"),
        Condition::Images(yes) => with(yes, "images"),
        Condition::Header(h) => match &h.value {
            Some(value) => format!("the header {} with {value:?}", h.name),
            None => format!("the header {}", h.name),
        },
        Condition::System(p) => format!("a system prompt with {p:?}"),
        Condition::User(p) => format!("a question with {p:?}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", (time.as_secs_f64() * 1000.0).round() / 1000.0)
}

fn count(n: u32, one: &str, more: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {more}") }
}
