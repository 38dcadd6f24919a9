//! Limits of a rendering, charged to a `Budget`: steps, bytes of created texts and lists, work of scanning values, and time.
//!
//! The engine counts steps (its fuel), but a step can make or search huge texts and lists. So filters, tests and methods are charged for
//! their inputs and outputs here, and operators in `operators`.

use std::sync::Arc;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};

use super::bounds::{TEXT_BYTES_MAX, check_parts, check_text, text};
use super::budget::{Budget, FUEL, MADE_BYTES_MAX};
use super::python;

/// Bytes charged per list item.
const ITEM_BYTES: u64 = 32;
/// The name of the budget among the functions. No template can read it: it is not a name.
pub(super) const BUDGET: &str = "the budget";

/// What a rendering is charged to, and the steps before it.
struct RenderCost {
    budget: Arc<Budget>,
    before: u64,
}

pub(super) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// The budget of this rendering, with its steps so far.
fn spent<'a>(state: &'a mut State<'_, '_>) -> &'a Budget {
    let steps = state.fuel_levels().map_or(0, |(used, _)| used);
    if state.get_extension::<RenderCost>().is_none() {
        let given = state.env().globals().find(|(name, _)| *name == BUDGET);
        let budget = given.and_then(|(_, value)| value.downcast_object()).unwrap_or_else(Budget::of_one);
        let before = budget.steps();
        state.get_or_insert_extension(RenderCost { budget, before });
    }
    // It has just been inserted.
    let cost = state.get_or_insert_extension_with(|| RenderCost { budget: Budget::of_one(), before: 0 });
    cost.budget.set_steps(cost.before + steps);
    &cost.budget
}

/// Charges for bytes about to be created.
pub(super) fn make(state: &mut State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let spent = spent(state);
    if !spent.make(bytes as u64) {
        return Err(invalid(format!("it makes more than {} MiB of texts and lists", MADE_BYTES_MAX >> 20)));
    }
    in_time(spent)
}

/// Charges for a list of so many items, or a mapping.
pub(super) fn make_list(state: &mut State<'_, '_>, items: usize) -> Result<(), Error> {
    make(state, items.saturating_mul(ITEM_BYTES as usize))
}

/// Fails if the time is over. It is checked at each charge; the uncounted steps between are bounded by [`FUEL`] and take a second or two.
fn in_time(spent: &Budget) -> Result<(), Error> {
    match spent.time_passed() {
        Some(max) => Err(invalid(format!("it takes longer than {} s", max.as_secs()))),
        None => Ok(()),
    }
}

/// Charges for work about to be done.
pub(super) fn work(state: &mut State<'_, '_>, n: u64) -> Result<(), Error> {
    let spent = spent(state);
    if !spent.work(n) {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    in_time(spent)
}

/// Blocks and items of a value, not counting nested values.
pub(super) fn size(value: &Value) -> u64 {
    match value.as_str() {
        Some(s) => 1 + s.len() as u64 / 16,
        None => 1 + 2 * value.len().unwrap_or(0) as u64,
    }
}

/// Charges for scanning a value with its nested values; a value contained twice counts twice.
pub(super) fn walk(state: &mut State<'_, '_>, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > python::MAX_DEPTH {
        return Err(python::too_deep());
    }
    // Several calls for each value.
    work(state, 4 * size(value))?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.checked().try_for_each(|v| walk(state, &v?, depth + 1))
        }
        ValueKind::Map => {
            value.try_iter()?.checked().try_for_each(|k| walk(state, &value.get_item(&k?)?, depth + 1))
        }
        _ => Ok(()),
    }
}

/// Charges for the input and output of a filter: with nested values of the first argument if it `scans` them, and of the others, which
/// may be compared or hashed.
pub(super) fn counted(
    state: &mut State<'_, '_>,
    args: &[Value],
    scans: bool,
    call: impl FnOnce(&mut State<'_, '_>) -> Result<Value, Error>,
) -> Result<Value, Error> {
    for (i, arg) in args.iter().enumerate() {
        if scans || i > 0 { walk(state, arg, 0)? } else { work(state, size(arg))? }
    }
    let out = call(state)?;
    match out.as_str() {
        Some(s) => make(state, s.len())?,
        None => make_list(state, out.len().unwrap_or(0))?,
    }
    Ok(out)
}

/// Calls a method, with charges.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    args: &[Value],
    call: impl FnOnce(&mut State<'_, '_>) -> Result<Value, Error>,
) -> Result<Value, Error> {
    work(state, size(value))?;
    // Lists and mappings compare or hash the arguments with their nested values.
    counted(state, args, true, call)
}

/// Replaces the engine's filters, tests and functions by charged ones.
pub(super) fn add(env: &mut Environment<'_>) {
    add_filters(env);
    add_tests(env);
    for (name, function) in [
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            make_list(state, args.iter().filter_map(Value::len).sum())?;
            function.call(state, &args)
        });
    }
    env.remove_global("debug");
}

fn add_filters(env: &mut Environment<'_>) {
    for (name, filter) in [
        ("upper", Value::from_function(filters::upper)),
        ("lower", Value::from_function(filters::lower)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
    ] {
        env.add_filter(name, move |state: &mut State<'_, '_>, value: &Value| {
            let args = [Value::from(text(state, value)?.into_owned())];
            counted(state, &args, false, |state| filter.call(state, &args))
        });
    }
    for (name, filter, scans) in [
        ("attr", Value::from_function(filters::attr), false),
        ("length", Value::from_function(filters::length), false),
        ("count", Value::from_function(filters::length), false),
        ("reverse", Value::from_function(filters::reverse), false),
        ("items", Value::from_function(filters::items), false),
        ("escape", Value::from_function(escape), false),
        ("e", Value::from_function(escape), false),
        ("dictsort", Value::from_function(filters::dictsort), true),
        ("sort", Value::from_function(filters::sort), true),
        ("unique", Value::from_function(filters::unique), true),
        ("groupby", Value::from_function(filters::groupby), true),
        ("min", Value::from_function(filters::min), true),
        ("max", Value::from_function(filters::max), true),
        ("map", Value::from_function(filters::map), true),
        ("select", Value::from_function(filters::select), false),
        ("reject", Value::from_function(filters::reject), false),
        ("selectattr", Value::from_function(filters::selectattr), false),
        ("rejectattr", Value::from_function(filters::rejectattr), false),
    ] {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            counted(state, &args, scans, |state| filter.call(state, &args))
        });
    }
    for (name, filter, other) in [
        ("int", Value::from_function(filters::int), Value::from(0)),
        ("float", Value::from_function(filters::float), Value::from(0.0)),
    ] {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = args.into_values();
            let trimmed = args.first().and_then(|v| v.as_str().map(|s| Value::from(s.trim())));
            if let (Some(first), Some(trimmed)) = (args.first_mut(), trimmed) {
                *first = trimmed;
            }
            // jinja2 has a default for what is not a number.
            counted(state, &args, false, |state| match filter.call(state, &args) {
                Err(e) if e.kind() == ErrorKind::InvalidOperation => Ok(other.clone()),
                done => done,
            })
        });
    }
    for (name, filter) in
        [("split", Value::from_function(filters::split)), ("lines", Value::from_function(filters::lines))]
    {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            if let Some(s) = args.first().and_then(Value::as_str) {
                check_parts(s, args.get(1))?;
            }
            counted(state, &args, false, |state| filter.call(state, &args))
        });
    }
    // Without auto-escaping a safe text is a text.
    env.add_filter("safe", |state: &mut State<'_, '_>, value: &Value| {
        let out = text(state, value)?.into_owned();
        make(state, out.len())?;
        Ok::<_, Error>(out)
    });
    // The size of their results cannot be bounded in advance, and no chat template uses them.
    for name in ["pprint", "urlencode", "chain", "zip"] {
        env.remove_filter(name);
    }
}

fn add_tests(env: &mut Environment<'_>) {
    let starts: fn(&str, &str) -> bool = |s, part| s.starts_with(part);
    let ends: fn(&str, &str) -> bool = |s, part| s.ends_with(part);
    for (name, test) in [("startingwith", starts), ("endingwith", ends)] {
        env.add_test(name, move |state: &mut State<'_, '_>, a: &Value, b: &Value| -> Result<bool, Error> {
            work(state, size(a) + size(b))?;
            let (a, b) = (text(state, a)?, text(state, b)?);
            Ok(test(&a, &b))
        });
    }
    for (name, test) in
        [("lower", Value::from_function(tests::is_lower)), ("upper", Value::from_function(tests::is_upper))]
    {
        env.add_test(name, move |state: &mut State<'_, '_>, value: Value| {
            work(state, size(&value))?;
            test.call(state, &[value]).map(|v| v.is_true())
        });
    }
    for (names, test) in [
        (&["eq", "equalto", "=="][..], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
    ] {
        for name in names {
            let test = test.clone();
            env.add_test(*name, move |state: &mut State<'_, '_>, a: Value, b: Value| {
                walk(state, &a, 0)?;
                walk(state, &b, 0)?;
                test.call(state, &[a, b]).map(|v| v.is_true())
            });
        }
    }
}

/// markupsafe's `escape`, which jinja2 uses.
fn escape(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for c in python::str(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Steps for a template whose longest literal text has this many bytes, as each step may print it.
pub(super) fn fuel(longest: usize) -> u64 {
    FUEL.min(MADE_BYTES_MAX / longest.max(1) as u64)
}

/// Charges for printed text, which macros and blocks keep.
pub(super) fn printed(state: &mut State<'_, '_>, bytes: usize) -> Result<(), Error> {
    check_text(bytes)?;
    make(state, bytes)
}

/// Fails if the prompt is too long.
pub(super) fn check_prompt(bytes: usize) -> Result<(), Error> {
    if bytes > TEXT_BYTES_MAX {
        let what = format!("the prompt would be longer than {} MiB", TEXT_BYTES_MAX >> 20);
        return Err(Error::new(ErrorKind::WriteFailure, what));
    }
    Ok(())
}
