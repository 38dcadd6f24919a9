//! Protection against untrusted templates that would exhaust the stack or the memory: limits on the source, a separate stack, and filters
//! that check the length of a text before they create it. The total cost of a rendering is limited in `limits`.

use std::borrow::Cow;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, args, filters};

use super::{TemplateError, limits, python};

/// Maximum size of a template: the largest known have about ten thousand bytes.
pub(super) const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of operators of a template (a filter, an attribute, a `not`, ...; text that looks like one counts too). Parsing
/// recurses once for each at worst. The largest known templates have about a thousand.
const OPERATORS_MAX: usize = 40_000;
/// Maximum size of a text that a filter or method creates; the same as of the prompt.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 20;
/// Maximum number of items of a list that a filter creates.
pub(super) const ITEMS_MAX: usize = 1 << 20;
/// Address space for the stack of [`apart`]; only the used part becomes memory. Enough for `OPERATORS_MAX` nested calls, and for
/// dropping lists nested as deep as a rendering can make them.
const STACK_BYTES: usize = 512 << 20;

/// Runs `work` on a thread whose stack no template can use up. A panic becomes an error.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let thread =
            thread.spawn_scoped(scope, work).map_err(|e| TemplateError::NoThread { what: e.to_string() })?;
        let gave_up = "the template engine gave up (a fault of the engine)";
        thread.join().map_err(|_| TemplateError::Failed { what: gave_up.into() })
    })
}

/// Refuses sources that could not be parsed within the stack.
pub(super) fn check_source(source: &str) -> Result<(), String> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(format!("it has {} bytes; at most {SOURCE_BYTES_MAX} are allowed", source.len()));
    }
    let signs = source.bytes().filter(|b| b"|.+-~*/%<>=!([{".contains(b)).count();
    let words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|w| matches!(*w, "not" | "and" | "or" | "if" | "elif" | "in" | "is")).count();
    if signs + words > OPERATORS_MAX {
        return Err(format!("it has {} operators; at most {OPERATORS_MAX} are allowed", signs + words));
    }
    Ok(())
}

/// Replaces the engine's filters by limited ones.
pub(super) fn add_filters(env: &mut Environment<'_>) {
    env.add_filter(
        "replace",
        |state: &mut State, s: &Value, from: &Value, to: &Value| -> Result<String, Error> {
            let (s, from, to) = (text(state, s)?, text(state, from)?, text(state, to)?);
            let bytes = check_replace(&s, &from, &to, usize::MAX)?;
            limits::make(state, bytes)?;
            Ok(s.replace(&*from, &to))
        },
    );
    let indent = Value::from_function(indent);
    env.add_filter("indent", move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let mut args = args.into_values();
        if let Some(value) = args.first_mut() {
            *value = Value::from(text(state, value)?.into_owned());
        }
        limits::counted(state, &args, false, |state| indent.call(state, &args))
    });
    env.add_filter("join", join_filter);
    env.add_filter(
        "format",
        |state: &mut State, s: &Value, args: Rest<ValueOrKwargs>| -> Result<String, Error> {
            let Some(s) = s.as_str() else {
                return Err(Error::new(ErrorKind::InvalidOperation, "value is not a string"));
            };
            let out = formatted(state, FormatStyle::Printf, s, &args.into_values())?;
            limits::make(state, out.len())?;
            Ok(out)
        },
    );
    env.add_filter("slice", |state: &mut State, v: Value, count: usize, fill: Option<Value>| {
        make_items(state, &v, count)?;
        filters::slice(state, v, count, fill)
    });
    env.add_filter("batch", |state: &mut State, v: Value, count: usize, fill: Option<Value>| {
        make_items(state, &v, count)?;
        filters::batch(state, v, count, fill)
    });
    env.add_filter("list", |state: &mut State, v: Value| {
        make_items(state, &v, 0)?;
        // A lazy list does not know its length.
        let out = filters::list(state, v)?;
        limits::make_list(state, out.len().unwrap_or(0))?;
        Ok::<_, Error>(out)
    });
}

/// A value as a text, which is charged if it is made. The engine's own conversion would write nested lists without a limit.
pub(super) fn text<'v>(state: &mut State<'_, '_>, value: &'v Value) -> Result<Cow<'v, str>, Error> {
    if let Some(s) = value.as_str() {
        return Ok(s.into());
    }
    // First, since a value that contains another one many times takes long to write.
    limits::walk(state, value, 0)?;
    let out = python::str(value)?;
    limits::make(state, out.len())?;
    Ok(out.into())
}

fn too_long() -> Error {
    let what = format!("a text would be longer than {} MiB", TEXT_BYTES_MAX >> 20);
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Fails if a text of `bytes` bytes exceeds the limit.
pub(super) fn check_text(bytes: usize) -> Result<(), Error> {
    if bytes > TEXT_BYTES_MAX { Err(too_long()) } else { Ok(()) }
}

fn check_items(value: &Value, count: usize) -> Result<(), Error> {
    // A text counts by characters, at most its bytes.
    let items = value.as_str().map(str::len).or_else(|| value.len()).unwrap_or(0).max(count);
    if items > ITEMS_MAX {
        let what = format!("a list would have {items} items; at most {ITEMS_MAX} are allowed");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(())
}

/// Charges for a list of a value's items, in `count` parts, and fails if there are too many.
fn make_items(state: &mut State<'_, '_>, value: &Value, count: usize) -> Result<(), Error> {
    check_items(value, count)?;
    limits::make_list(
        state,
        value.as_str().map(str::len).or_else(|| value.len()).unwrap_or(0).saturating_add(count),
    )
}

/// Fails if a text has too many parts: between separators, else between white space.
pub(super) fn check_parts(s: &str, separator: Option<&Value>) -> Result<(), Error> {
    // There are at most as many as characters.
    if s.len() < ITEMS_MAX {
        return Ok(());
    }
    let parts = match separator.and_then(Value::as_str).filter(|s| !s.is_empty()) {
        Some(separator) => s.matches(separator).count() + 1,
        None => s.split_whitespace().count(),
    };
    check_items(&Value::from(()), parts)
}

/// Fails if `s.replace(from, to)`, at most `most` times, would be too long.
pub(super) fn check_replace(s: &str, from: &str, to: &str, most: usize) -> Result<usize, Error> {
    let times = s.matches(from).count().min(most);
    let bytes = times.saturating_mul(to.len()).saturating_add(s.len());
    check_text(bytes)?;
    Ok(bytes)
}

/// jinja2's `indent(value, width=4, first=False, blank=False)`; the width is a number or a text.
fn indent(
    value: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let flag = |given: Option<bool>, name| given.map_or_else(|| kwargs.get(name), |v| Ok(Some(v)));
    let (first, blank) = (flag(first, "first")?.unwrap_or(false), flag(blank, "blank")?.unwrap_or(false));
    let width = match width {
        Some(width) => Some(width),
        None => kwargs.get("width")?,
    };
    kwargs.assert_all_used()?;
    let lines = value.matches('\n').count() + 1;
    let bytes = |columns: usize| lines.saturating_mul(columns).saturating_add(value.len());
    let margin = match width {
        None => "    ".to_string(),
        Some(width) => match width.as_str() {
            Some(s) => s.to_string(),
            None => {
                let columns = usize::try_from(width)?;
                check_text(bytes(columns))?;
                " ".repeat(columns)
            }
        },
    };
    check_text(bytes(margin.len()))?;
    let mut out = String::with_capacity(bytes(margin.len()));
    for (i, line) in value.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// jinja2's `join(value, d='', attribute=None)`.
fn join_filter(
    state: &mut State,
    value: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let separator = match separator {
        Some(s) => Some(s),
        None => kwargs.get("d")?,
    };
    let separator = separator.filter(|s: &Value| !s.is_none() && !s.is_undefined());
    let separator = separator.as_ref().map(|s| text(state, s)).transpose()?.unwrap_or_default();
    let attribute = match attribute {
        Some(a) => Some(a),
        None => kwargs.get("attribute")?,
    };
    kwargs.assert_all_used()?;
    let out = match attribute.filter(|a| !a.is_none()) {
        Some(attribute) => {
            let values = state.apply_filter("map", args![value, attribute => attribute])?;
            join(state, &values, &separator)?
        }
        None => join(state, value, &separator)?,
    };
    limits::make(state, out.len())?;
    Ok(out)
}

/// Joins the items of `values` with `separator`.
pub(super) fn join(state: &mut State<'_, '_>, values: &Value, separator: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in values.try_iter()?.checked().enumerate() {
        limits::work(state, 1)?;
        let item = item?;
        let text = text(state, &item)?;
        check_text(out.len().saturating_add(separator.len()).saturating_add(text.len()))?;
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(&text);
    }
    Ok(out)
}

/// The engine's `format`, unless the text might be too long.
pub(super) fn formatted(
    state: &mut State<'_, '_>,
    style: FormatStyle,
    s: &str,
    args: &[Value],
) -> Result<String, Error> {
    let mut longest = 0;
    let mut largest = 0;
    for arg in args {
        // Named arguments are one mapping, which is at least as long as each of them.
        longest = longest.max(text(state, arg)?.len());
        if arg.kind() == ValueKind::Number {
            largest = largest.max(arg.as_i64().map_or(usize::MAX, |n| n.unsigned_abs() as usize));
        }
    }
    let mut total = s.len();
    for field in s.split(if style == FormatStyle::Printf { '%' } else { '{' }).skip(1) {
        let spec = match style {
            FormatStyle::Printf => {
                let rest = field.strip_prefix('(').and_then(|f| f.split_once(')')).map_or(field, |(_, f)| f);
                rest.split(|c: char| !"#0- +.*123456789".contains(c)).next()
            }
            FormatStyle::StrFormat => field.split('}').next(),
        };
        let spec = spec.unwrap_or_default();
        // Widths, precisions and all other numbers: at worst, a text with larger numbers is refused unnecessarily.
        let numbers = spec.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let numbers = numbers.map(|n| n.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
        // A `*` takes the width from an argument.
        let starred = if spec.contains('*') { largest.saturating_mul(2) } else { 0 };
        total = total.saturating_add(longest).saturating_add(numbers).saturating_add(starred);
    }
    check_text(total)?;
    format(style, s, args)
}
