//! Limits of a rendering, charged to a `Budget`: steps, bytes of created texts and lists, work of scanning values, and time. Used by
//! `jinja`.
//!
//! The engine counts steps (its fuel), but a step can double a text or a list, or compare two huge ones. So operators become calls of
//! functions here, which check sizes first: [`bound`] replaces the engine's instructions, one for one. Filters, tests and methods are
//! charged for their inputs and outputs.

use std::sync::Arc;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, tests};

use super::bounds::{ITEMS_MAX, TEXT_BYTES_MAX, check_text};
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

fn invalid(what: impl Into<String>) -> Error {
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
    if !spent(state).make(bytes as u64) {
        return Err(invalid(format!("it makes more than {} MiB of texts and lists", MADE_BYTES_MAX >> 20)));
    }
    Ok(())
}

/// Charges for work about to be done. The time is checked here; the uncounted steps between are bounded by [`FUEL`] and take a second
/// or two.
pub(super) fn work(state: &mut State<'_, '_>, n: u64) -> Result<(), Error> {
    let spent = spent(state);
    if !spent.work(n) {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    match spent.time_passed() {
        Some(max) => Err(invalid(format!("it takes longer than {} s", max.as_secs()))),
        None => Ok(()),
    }
}

/// Blocks and items of a value, not counting nested values.
fn size(value: &Value) -> u64 {
    match value.as_str() {
        Some(s) => 1 + s.len() as u64 / 16,
        None => 1 + 2 * value.len().unwrap_or(0) as u64,
    }
}

/// Charges for scanning a value with its nested values; a value contained twice counts twice.
fn walk(state: &mut State<'_, '_>, value: &Value, depth: usize) -> Result<(), Error> {
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

/// Charges for the input and output of a filter, test or method.
pub(super) fn counted(
    state: &mut State<'_, '_>,
    args: &[Value],
    all: bool,
    call: impl FnOnce(&mut State<'_, '_>) -> Result<Value, Error>,
) -> Result<Value, Error> {
    for arg in args {
        if all { walk(state, arg, 0)? } else { work(state, size(arg))? }
    }
    let out = call(state)?;
    match out.as_str() {
        Some(s) => make(state, s.len())?,
        None => make(state, out.len().unwrap_or(0).saturating_mul(ITEM_BYTES as usize))?,
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
    counted(state, args, false, call)
}

/// Replaces the engine's filters, tests and functions by charged ones, and adds those of [`bound`].
pub(super) fn add(env: &mut Environment<'_>) {
    add_filters(env);
    add_tests(env);
    add_operators(env);
    env.remove_global("debug");
}

fn add_filters(env: &mut Environment<'_>) {
    for (name, filter, all) in [
        ("upper", Value::from_function(filters::upper), false),
        ("lower", Value::from_function(filters::lower), false),
        ("title", Value::from_function(filters::title), false),
        ("capitalize", Value::from_function(filters::capitalize), false),
        ("split", Value::from_function(filters::split), false),
        ("lines", Value::from_function(filters::lines), false),
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
            counted(state, &args, all, |state| filter.call(state, &args))
        });
    }
    // The size of their results cannot be bounded in advance, and no chat template uses them.
    for name in ["pprint", "urlencode", "chain", "zip"] {
        env.remove_filter(name);
    }
    env.add_filter("sum", |state: &mut State<'_, '_>, values: &Value| -> Result<Value, Error> {
        let mut sum = Value::from(0);
        for value in values.try_iter()?.checked() {
            sum = add_values(state, &sum, &value?)?;
        }
        Ok(sum)
    });
}

fn add_tests(env: &mut Environment<'_>) {
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

/// Adds the filters that [`bound`] puts in place of operators.
fn add_operators(env: &mut Environment<'_>) {
    env.add_filter(ADD, add_values);
    env.add_filter(MUL, multiply);
    env.add_filter(CONCAT, |state: &mut State<'_, '_>, a: &Value, b: &Value| -> Result<Value, Error> {
        let (a, b) = (python::str(a)?, python::str(b)?);
        text(state, a.len().saturating_add(b.len()), || a + &b)
    });
    env.add_filter(SLICE, slice);
    env.add_filter(ITEM, |state: &mut State<'_, '_>, of: &Value, key: &Value| -> Result<Value, Error> {
        walk(state, key, 0)?;
        // Indexing a text, or a lazy list, counts from the beginning.
        if matches!(of.kind(), ValueKind::String | ValueKind::Iterable) {
            work(state, size(of))?;
        }
        of.get_item(key)
    });
    env.add_filter(IN, contains);
    compare(env, EQ, |a, b| a == b);
    compare(env, NE, |a, b| a != b);
    compare(env, LT, |a, b| a < b);
    compare(env, LE, |a, b| a <= b);
    compare(env, GT, |a, b| a > b);
    compare(env, GE, |a, b| a >= b);
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

fn compare(env: &mut Environment<'_>, name: &'static str, of: fn(&Value, &Value) -> bool) {
    env.add_filter(name, move |state: &mut State<'_, '_>, a: &Value, b: &Value| -> Result<bool, Error> {
        let scalar = |v: &Value| !matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
        // A comparison with another type does not scan the list.
        if scalar(a) || scalar(b) {
            work(state, size(a).min(size(b)))?;
        } else {
            walk(state, a, 0)?;
            walk(state, b, 0)?;
        }
        Ok(of(a, b))
    });
}

// Names that no template can contain.
const ADD: &str = "operator+";
const MUL: &str = "operator*";
const CONCAT: &str = "operator~";
const SLICE: &str = "operator[:]";
const ITEM: &str = "operator[]";
const IN: &str = "operatorin";
const EQ: &str = "operator==";
const NE: &str = "operator!=";
const LT: &str = "operator<";
const LE: &str = "operator<=";
const GT: &str = "operator>";
const GE: &str = "operator>=";

/// Replaces the instructions whose cost the engine does not count. Returns the length of the longest literal text, which a step may
/// print.
pub(super) fn bound(instructions: &mut Instructions<'_>) -> Result<usize, Error> {
    /// Looks the filter up by name each time.
    const NO_ID: u8 = !0;
    let mut longest = 0;
    for i in 0.. {
        let Some(instruction) = instructions.get_mut(i) else { break };
        let (name, args) = match instruction {
            Instruction::EmitRaw(raw) => {
                longest = longest.max(raw.len());
                continue;
            }
            Instruction::CompareAndPreserve(_) => {
                return Err(invalid("comparisons in a chain (a < b < c) are not supported"));
            }
            Instruction::Add => (ADD, 2),
            Instruction::Mul => (MUL, 2),
            Instruction::StringConcat => (CONCAT, 2),
            Instruction::Slice => (SLICE, 4),
            Instruction::GetItem => (ITEM, 2),
            Instruction::In => (IN, 2),
            Instruction::Eq => (EQ, 2),
            Instruction::Ne => (NE, 2),
            Instruction::Lt => (LT, 2),
            Instruction::Lte => (LE, 2),
            Instruction::Gt => (GT, 2),
            Instruction::Gte => (GE, 2),
            _ => continue,
        };
        *instruction = Instruction::ApplyFilter(name, Some(args), NO_ID);
    }
    Ok(longest)
}

/// Steps for a template whose longest literal text has this many bytes, as each step may print it.
pub(super) fn fuel(longest: usize) -> u64 {
    FUEL.min(MADE_BYTES_MAX / longest.max(1) as u64)
}

fn text(state: &mut State<'_, '_>, bytes: usize, of: impl FnOnce() -> String) -> Result<Value, Error> {
    check_text(bytes)?;
    make(state, bytes)?;
    Ok(Value::from(of()))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// The items of several lists.
fn items<'a>(state: &mut State<'_, '_>, lists: impl Iterator<Item = &'a Value>) -> Result<Vec<Value>, Error> {
    let mut out = Vec::new();
    for list in lists {
        for item in list.try_iter()?.checked() {
            if out.len() >= ITEMS_MAX {
                return Err(invalid(format!("a list would have more than {ITEMS_MAX} items")));
            }
            out.push(item?);
        }
    }
    make(state, out.len() * ITEM_BYTES as usize)?;
    Ok(out)
}

fn list(items: Vec<Value>, is_tuple: bool) -> Value {
    if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("tried to use {operator} operator on unsupported types {} and {}", a.kind(), b.kind()))
}

fn number(
    operator: &str,
    a: &Value,
    b: &Value,
    whole: fn(i64, i64) -> Option<i64>,
    float: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(a) || !is_number(b) {
        return Err(unsupported(operator, a, b));
    }
    let whole_of = |v: &Value| {
        if v.kind() == ValueKind::Bool {
            Some(i64::from(v.is_true()))
        } else {
            v.as_i64().filter(|_| v.is_integer())
        }
    };
    match (whole_of(a), whole_of(b)) {
        (Some(x), Some(y)) => {
            let out = whole(x, y);
            out.map(Value::from).ok_or_else(|| invalid(format!("unable to calculate {a} {operator} {b}")))
        }
        (x, y) => {
            let of = |v: &Value, w: Option<i64>| w.map_or_else(|| f64::try_from(v.clone()), |w| Ok(w as f64));
            Ok(Value::from(float(of(a, x)?, of(b, y)?)))
        }
    }
}

fn add_values(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return text(state, x.len().saturating_add(y.len()), || [x, y].concat());
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        return Ok(list(items(state, [a, b].into_iter())?, a.is_tuple()));
    }
    number("+", a, b, i64::checked_add, |x, y| x + y)
}

fn multiply(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    let (what, times) = if a.as_str().is_some() || is_list(a) { (a, b) } else { (b, a) };
    let count = || -> Result<usize, Error> {
        if !times.is_integer() {
            return Err(unsupported("*", a, b));
        }
        // Negative counts as 0.
        Ok(times.as_i64().map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(0)))
    };
    if let Some(s) = what.as_str() {
        let n = count()?;
        return text(state, s.len().saturating_mul(n), || s.repeat(n));
    }
    if is_list(what) {
        // An empty list stays empty, however often it is repeated.
        let n = if what.len() == Some(0) { 0 } else { count()? };
        return Ok(list(items(state, std::iter::repeat_n(what, n))?, what.is_tuple()));
    }
    number("*", a, b, i64::checked_mul, |x, y| x * y)
}

/// Python's `of[start:stop:step]`.
fn slice(
    state: &mut State<'_, '_>,
    of: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let whole = |v: &Value| -> Result<Option<i64>, Error> {
        if v.is_none() || v.is_undefined() {
            return Ok(None);
        }
        let n = v.as_i64().filter(|_| v.is_integer());
        n.map(Some).ok_or_else(|| invalid(format!("a slice takes whole numbers, not {}", v.kind())))
    };
    let (start, stop, step) = (whole(start)?, whole(stop)?, whole(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("cannot slice by step size of 0"));
    }
    work(state, size(of))?;
    let chosen = |len: usize| {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |n: Option<i64>, other: i64| {
            n.map_or(other, |n| if n < 0 { n.saturating_add(len) } else { n }.clamp(low, high))
        };
        let (from, to) = if step > 0 {
            (place(start, 0), place(stop, len))
        } else {
            (place(start, len - 1), place(stop, -1))
        };
        let mut at = Some(from);
        std::iter::from_fn(move || {
            let i = at?;
            if if step > 0 { i >= to } else { i <= to } {
                return None;
            }
            at = i.checked_add(step);
            usize::try_from(i).ok()
        })
    };
    if let Some(s) = of.as_str() {
        make(state, s.len())?;
        if step == 1 && s.is_ascii() {
            let mut range = chosen(s.len());
            let from = range.next().unwrap_or(0);
            let count = if s.is_empty() { 0 } else { chosen(s.len()).count() };
            return Ok(Value::from(&s[from..from + count]));
        }
        work(state, s.len() as u64)?;
        let chars: Vec<char> = s.chars().collect();
        return Ok(Value::from(chosen(chars.len()).filter_map(|i| chars.get(i)).collect::<String>()));
    }
    if of.is_none() || of.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(of) {
        return Err(invalid(format!("value of type {} cannot be sliced", of.kind())));
    }
    let all = items(state, [of].into_iter())?;
    Ok(list(chosen(all.len()).filter_map(|i| all.get(i).cloned()).collect(), of.is_tuple()))
}

fn contains(state: &mut State<'_, '_>, value: &Value, of: &Value) -> Result<bool, Error> {
    if let Some(s) = of.as_str() {
        work(state, size(of))?;
        return Ok(match value.as_str() {
            Some(part) => s.contains(part),
            None => s.contains(&python::str(value)?),
        });
    }
    match of.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => {
            walk(state, value, 0)?;
            Ok(of.as_object().is_some_and(|o| o.get_value(value).is_some()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let scalar = !is_list(value) && value.kind() != ValueKind::Map;
            if scalar {
                work(state, size(of))?
            } else {
                walk(state, of, 0)?
            }
            for item in of.try_iter()?.checked() {
                if item? == *value {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(invalid("cannot perform a containment check on this value")),
    }
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
