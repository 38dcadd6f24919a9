//! Operators of templates, bounded: a step of the engine can double a text or a list, or compare or hash two huge ones. So [`bound`]
//! replaces its instructions by calls of the filters here, one for one, which check sizes first and charge the budget.

use indexmap::IndexMap;
use minijinja::formatting::FormatStyle;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::bounds::{self, ITEMS_MAX, check_text};
use super::limits::{invalid, make, make_list, size, walk, work};
use super::python;

/// Adds the filters that [`bound`] puts in place of operators.
pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter(ADD, add_values);
    env.add_filter("sum", |state: &mut State<'_, '_>, values: &Value| -> Result<Value, Error> {
        let mut sum = Value::from(0);
        for value in values.try_iter()?.checked() {
            work(state, 1)?;
            sum = add_values(state, &sum, &value?)?;
        }
        Ok(sum)
    });
    env.add_filter(MUL, multiply);
    env.add_filter(REM, remainder);
    env.add_filter(CONCAT, |state: &mut State<'_, '_>, a: &Value, b: &Value| -> Result<Value, Error> {
        let (a, b) = (python::str(a)?, python::str(b)?);
        made_text(state, a.len().saturating_add(b.len()), || a + &b)
    });
    env.add_filter(SLICE, slice);
    env.add_filter(MAP, map);
    env.add_filter(CHANGED, |state: &mut State<'_, '_>, of: &Value, args: Rest<Value>| {
        args.iter().try_for_each(|arg| walk(state, arg, 0))?;
        of.call_method(state, "changed", &args)
    });
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
const REM: &str = "operator%";
const CONCAT: &str = "operator~";
const SLICE: &str = "operator[:]";
const ITEM: &str = "operator[]";
const IN: &str = "operatorin";
const MAP: &str = "operator{}";
const CHANGED: &str = "operator.changed";
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
            // Without keys there is nothing to hash.
            Instruction::BuildMap(0) => continue,
            Instruction::BuildMap(pairs) => {
                let args = u16::try_from(2 * *pairs);
                (
                    MAP,
                    args.map_err(|_| invalid(format!("a mapping has {pairs} pairs; the maximum is 32767")))?,
                )
            }
            // `loop.changed(value)` compares the value with the last one.
            Instruction::CallMethod("changed", Some(args)) => (CHANGED, *args),
            Instruction::CallMethod("changed", None) => {
                return Err(invalid("changed() with an unpacked list is not supported"));
            }
            Instruction::Add => (ADD, 2),
            Instruction::Mul => (MUL, 2),
            Instruction::Rem => (REM, 2),
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

fn made_text(state: &mut State<'_, '_>, bytes: usize, of: impl FnOnce() -> String) -> Result<Value, Error> {
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
    make_list(state, out.len())?;
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
        return made_text(state, x.len().saturating_add(y.len()), || [x, y].concat());
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
        return made_text(state, s.len().saturating_mul(n), || s.repeat(n));
    }
    if is_list(what) {
        // An empty list stays empty, however often it is repeated.
        let n = if what.len() == Some(0) { 0 } else { count()? };
        return Ok(list(items(state, std::iter::repeat_n(what, n))?, what.is_tuple()));
    }
    number("*", a, b, i64::checked_mul, |x, y| x * y)
}

/// Python's `%`: a remainder with the divisor's sign, or a text with values put in. A tuple has several values, a mapping named ones.
fn remainder(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(s) = a.as_str() {
        let values = match b.kind() {
            _ if b.is_tuple() => items(state, [b].into_iter())?,
            ValueKind::Map => vec![named(state, b)?],
            _ => vec![b.clone()],
        };
        let out = bounds::formatted(state, FormatStyle::Printf, s, &values)?;
        make(state, out.len())?;
        return Ok(Value::from(out));
    }
    let whole =
        |x: i64, y: i64| x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r });
    if [b.as_i64(), f64::try_from(b.clone()).ok().filter(|y| *y == 0.0).map(|_| 0)].contains(&Some(0)) {
        return Err(invalid("division by zero"));
    }
    let float = |x: f64, y: f64| {
        let r = x % y;
        if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
    };
    number("%", a, b, whole, float)
}

/// The values of a mapping as named arguments.
fn named(state: &mut State<'_, '_>, of: &Value) -> Result<Value, Error> {
    let mut values = Vec::new();
    for key in of.try_iter()?.checked() {
        let key = key?;
        work(state, 1)?;
        values.push((bounds::text(state, &key)?.into_owned(), of.get_item(&key)?));
    }
    Ok(values.into_iter().collect::<Kwargs>().into())
}

/// A mapping of keys and values in turn. Each key is hashed with its nested values.
fn map(state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let mut map = IndexMap::with_capacity(args.len() / 2);
    for pair in args.chunks_exact(2) {
        walk(state, &pair[0], 0)?;
        map.insert(pair[0].clone(), pair[1].clone());
    }
    make_list(state, map.len())?;
    Ok(Value::from_object(map))
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
