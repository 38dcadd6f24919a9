//! The template engine, configured like transformers' jinja2: the same switches, functions and filters, and values printed as in Python.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::machinery::{self, CodeGenerator};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::budget::Budget;
use super::python::{self, JsonStyle};
use super::strftime::strftime;
use super::{bounds, constants, limits, operators};

/// Name of the template in the environment, and in error messages.
pub(super) const NAME: &str = "chat";

/// Maximum depth of nested calls.
const RECURSION_MAX: usize = 200;

/// The argument of `raise_exception`: the template's message to the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TemplateException(pub String);

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// An environment that parses `source`; [`render`] renders it.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut env = functions();
    env.set_syntax(syntax()?);
    constants::check(&machinery::parse(source, NAME, syntax()?)?)?;
    env.add_template_owned(NAME, source.to_string())?;
    Ok(env)
}

/// Functions, filters, tests and methods.
fn functions<'a>() -> Environment<'a> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(RECURSION_MAX);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| {
        let text = bounds::text(state, value)?;
        limits::printed(state, text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    env.add_function("raise_exception", |state: &mut State, message: Value| -> Result<Value, Error> {
        limits::work(state, 1)?;
        let message = bounds::text(state, &message)?.into_owned();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(TemplateException(message)))
    });
    env.add_filter("tojson", |state: &mut State, value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        limits::walk(state, value, 0)?;
        let out = tojson(value, args, kwargs)?;
        limits::printed(state, out.len())?;
        Ok::<_, Error>(out)
    });
    env.add_filter("string", |state: &mut State, value: &Value| -> Result<String, Error> {
        let out = bounds::text(state, value)?.into_owned();
        limits::printed(state, out.len())?;
        Ok(out)
    });
    env.add_filter(
        "trim",
        |state: &mut State, value: &Value, chars: Option<&Value>| -> Result<String, Error> {
            let text = bounds::text(state, value)?;
            limits::printed(state, text.len())?;
            let chars = chars.filter(|c| !c.is_none()).map(|c| bounds::text(state, c)).transpose()?;
            Ok(strip(&text, chars.as_deref(), true, true).to_string())
        },
    );
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    limits::add(&mut env);
    operators::add(&mut env);
    bounds::add_filters(&mut env);
    // Strings and mappings count as sequences in jinja2.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    // Python cannot iterate over None; the engine can.
    env.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
    });
    env
}

/// The function `strftime_now` for one rendering.
pub(super) fn strftime_now(now_s: i64) -> Value {
    Value::from_function(move |state: &mut State, format: &str| {
        let out = strftime(format, now_s).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))?;
        limits::printed(state, out.len())?;
        Ok::<_, Error>(out)
    })
}

/// Renders the template `source`, from [`without_generation_tags`], within what is left of the budget. A rendering that fails is charged
/// for the steps up to its last filter, operator or function: the engine reports no others.
pub(super) fn render(source: &str, variables: Value, budget: &Arc<Budget>) -> Result<String, Error> {
    let mut code = CodeGenerator::new(NAME, source);
    code.compile_stmt(&machinery::parse(source, NAME, syntax()?)?);
    let (mut instructions, mut blocks) = code.finish();
    let mut longest = operators::bound(&mut instructions)?;
    for block in blocks.values_mut() {
        longest = longest.max(operators::bound(block)?);
    }
    let mut env = functions();
    let (before, fuel) = (budget.steps(), limits::fuel(longest).min(budget.steps_left()));
    env.set_fuel(Some(fuel));
    env.add_global(limits::BUDGET, Value::from_dyn_object(Arc::clone(budget)));
    let mut out = String::new();
    let mut output = machinery::make_string_output(&mut out);
    match machinery::eval(&env, &instructions, variables, &blocks, &mut output, AutoEscape::None) {
        Ok((_, state)) => budget.set_steps(before + state.fuel_levels().map_or(0, |(used, _)| used)),
        Err(e) => {
            if e.kind() == ErrorKind::OutOfFuel {
                budget.set_steps(before + fuel);
            }
            return Err(e);
        }
    }
    drop(output);
    limits::check_prompt(out.len())?;
    Ok(out)
}

/// jinja2's `default(value, default_value='', boolean=False)`.
fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let arg = |i: usize, name: &str| -> Result<Option<Value>, Error> {
        args.get(i).cloned().map_or_else(|| kwargs.get(name), |v| Ok(Some(v)))
    };
    let (other, falsy_too) = (arg(0, "default_value")?, arg(1, "boolean")?.is_some_and(|v| v.is_true()));
    kwargs.assert_all_used()?;
    let missing = value.is_undefined() || (falsy_too && !value.is_true());
    Ok(if missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

/// Methods of Python's strings, lists and dicts: those of `pycompat`, and some more of strings. Stripping is done here because
/// Python's white space has four more characters than Rust's.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    limits::method(state, value, args, |state| uncounted_method(state, value, name, args))
}

fn uncounted_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(s) = value.as_str() else { return pycompat::unknown_method_callback(state, value, name, args) };
    let stripped = |start: bool, end: bool| -> Result<Value, Error> {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(strip(s, chars, start, end)))
    };
    match name {
        "split" | "splitlines" | "rsplit" => {
            bounds::check_parts(s, args.first().filter(|_| name != "splitlines"))?
        }
        _ => {}
    }
    match name {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            // Negative means unlimited.
            let most = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            bounds::check_replace(s, from, to, most)?;
            Ok(Value::from(s.replacen(from, to, most)))
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            Ok(Value::from(bounds::join(state, values, s)?))
        }
        "format" => Ok(Value::from(bounds::formatted(state, FormatStyle::StrFormat, s, args)?)),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (head, found, tail) = match s.split_once(separator) {
                Some((head, tail)) => (head, separator, tail),
                None => (s, "", ""),
            };
            Ok(Value::from(Tuple::from([head, found, tail].map(Value::from))))
        }
        "rsplit" => {
            let (separator, most): (&str, Option<i64>) = from_args(args)?;
            let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<Value> = s.rsplitn(most + 1, separator).map(Value::from).collect();
            parts.reverse();
            Ok(Value::from(parts))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn strip<'a>(s: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let out = |c: char| match chars {
        Some(set) => set.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let s = if start { s.trim_start_matches(out) } else { s };
    if end { s.trim_end_matches(out) } else { s }
}

/// transformers' `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let arg = |i: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = match args.get(i) {
            Some(v) => Some(v.clone()),
            None => kwargs.get(name)?,
        };
        Ok(given.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let mut style = JsonStyle {
        ensure_ascii: arg(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        ..JsonStyle::default()
    };
    if let Some(indent) = arg(1, "indent")? {
        style.indent = Some(match indent.as_str() {
            Some(s) if s.len() <= 64 => s.to_string(),
            _ => " ".repeat(indent.as_usize().filter(|&n| n <= 64).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson's indent is neither a string of at most 64 bytes nor a number up to 64",
                )
            })?),
        });
        style.item_separator = ",".into();
    }
    if let Some(pair) = arg(2, "separators")? {
        let pair: Vec<Value> = pair.try_iter()?.collect();
        let [Some(item), Some(key)] = [0, 1].map(|i| pair.get(i).and_then(Value::as_str)) else {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson's separators are not two strings"));
        };
        (style.item_separator, style.key_separator) = (item.into(), key.into());
    }
    style.sort_keys = arg(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    python::json(value, &style)
}

/// Removes transformers' `{% generation %}` tags, which mark assistant text for training, and keeps their content.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|n| open + n) else { break };
        let inner = &rest[open + 2..close];
        let word = inner.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match replacement {
            Some(r) => {
                out.push_str(&rest[..open + 2]);
                out.push_str(&inner.replacen(word, r, 1));
            }
            None => out.push_str(&rest[..close]),
        }
        rest = &rest[close..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_print_what_is_in_them() {
        let source = "a {%- generation -%} b {% endgeneration %} {% set generation = 1 %}{{ '{%' }}";
        assert_eq!(
            without_generation_tags(source),
            "a {%- if true -%} b {% endif %} {% set generation = 1 %}{{ '{%' }}"
        );
    }

    #[test]
    fn strip_is_pythons() {
        assert_eq!(strip("\u{1c}\u{a0} a\u{85}\n", None, true, true), "a");
        assert_eq!(strip("xxaxx", Some("x"), false, true), "xxa");
    }
}
