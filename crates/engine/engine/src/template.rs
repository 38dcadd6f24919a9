//! Chat templates: renders messages to a prompt with the model's Jinja template. Used to tokenize chats; the result goes to
//! [`Tokenizer::encode_prompt`](crate::tokenizer::Tokenizer::encode_prompt).
//!
//! Templates come from model files and are untrusted: their size, and the steps, depth, time and memory of rendering are limited
//! (`bounds`, `limits`).

mod bounds;
mod budget;
mod constants;
mod forms;
mod guard;
mod jinja;
mod limits;
mod operators;
mod plain_tools;
mod python;
mod strftime;

use std::sync::{Arc, OnceLock};

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use octet_weights::Metadata;
use serde_json::{Map, Value};

use crate::tokenizer::{Prompt, Tokenizer};
use budget::Budget;
pub use budget::ProbeBudget;
use forms::Forms;
pub use forms::{ArgumentsForm, ContentForm};
use guard::{Guard, Used};

/// ChatML, for models without a template whose vocabulary has its tokens.
const CHATML: &str = r#"{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{%- for part in message.content or [] %}{{- part.text }}{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

/// Variables that belong to the renderer.
const RESERVED: &[&str] = &["messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"];

/// Why a chat could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model's template is invalid.
    #[error("the chat template does not parse: {what}")]
    Syntax {
        /// The template engine's message, with the line.
        what: String,
    },
    /// The model has no template, and the default does not fit.
    #[error("the model has no chat template, and its vocabulary is not ChatML's")]
    Missing,
    /// The template rejects these messages (`raise_exception`).
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// Invalid messages, tools or variables.
    #[error("{0}")]
    Input(String),
    /// The system gives no thread with a stack that is large enough for any template.
    #[error(
        "there is no thread for the chat template, which needs 512 MiB of address space: {what}; raise `ulimit -v` or `ulimit -u`"
    )]
    NoThread {
        /// The system's message.
        what: String,
    },
    /// The template failed on these messages.
    #[error("the chat template failed: {what}")]
    Failed {
        /// The template engine's message, with the line.
        what: String,
    },
}

/// The inputs of a template.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// `{"role": ..., "content": ...}` each; content is a string, null or a list of parts.
    pub messages: Vec<Value>,
    /// JSON schemas of tools, in OpenAI's form; `None` for none.
    pub tools: Option<Vec<Value>>,
    /// End with the beginning of an assistant message.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, `documents`, ...).
    pub variables: Map<String, Value>,
    /// The time for `strftime_now`, in seconds since 1970 UTC; `None` for the current time.
    pub now_s: Option<i64>,
}

/// A model's compiled chat template, with the tokens that it needs.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Compiled,
    /// Used for chats with tools, if the model has a template of that name.
    tool_use: Option<Compiled>,
    guard: Guard,
    /// `bos_token`, `eos_token`, ... as text.
    special: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Compiled {
    env: Environment<'static>,
    source: String,
    /// The source as the template engine reads it.
    plain: String,
    /// Variables that it reads and does not set, sorted.
    reads: Vec<String>,
    /// The forms of content and arguments that it accepts; found at the first rendering.
    forms: OnceLock<Forms>,
}

impl ChatTemplate {
    /// The model's own template, or ChatML if it has none and its vocabulary has `<|im_start|>`.
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let read = |key: &str| metadata.opt_str(key).map_err(|e| TemplateError::Input(e.to_string()));
        let source = match read("tokenizer.chat_template")? {
            Some(s) => s,
            None if tokenizer.special_id("<|im_start|>").is_some() => CHATML,
            None => return Err(TemplateError::Missing),
        };
        let mut out = Self::new(source, metadata, tokenizer)?;
        out.tool_use = read("tokenizer.chat_template.tool_use")?.map(compile).transpose()?;
        Ok(out)
    }

    /// The user's template, for the model of `metadata` and `tokenizer`.
    pub fn new(source: &str, metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let mut special = Vec::new();
        for (variable, key) in
            [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")]
        {
            let id = metadata
                .opt_u32(&format!("tokenizer.ggml.{key}_token_id"))
                .map_err(|e| TemplateError::Input(e.to_string()))?
                .or(if key == "bos" { tokenizer.bos_token() } else { None });
            if let Some(text) = id.and_then(|id| tokenizer.token_text(id)) {
                special.push((variable, text.to_string()));
            }
        }
        Ok(Self {
            default: compile(source)?,
            tool_use: None,
            guard: Guard::new(tokenizer).map_err(TemplateError::Input)?,
            special,
        })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.default.source
    }

    /// Checks whether a variable of this name has an effect. The error says why not: it is reserved for the renderer, a function, or
    /// not mentioned in the template (a misspelt one would be silently ignored).
    pub fn check_variable(&self, name: &str) -> Result<(), String> {
        let all = || std::iter::once(&self.default).chain(&self.tool_use);
        let is_function = |c: &Compiled| c.env.globals().any(|(global, _)| global == name);
        if RESERVED.contains(&name) || all().any(is_function) {
            return Err("cannot be set: templates have something else of that name".into());
        }
        if all().any(|c| mentions(&c.source, name)) {
            return Ok(());
        }
        let given =
            |n: &String| RESERVED.contains(&n.as_str()) || self.special.iter().any(|(s, _)| *s == n.as_str());
        let mut reads: Vec<&str> = all().flat_map(|c| &c.reads).filter(|n| !given(n)).map(|n| &**n).collect();
        reads.sort_unstable();
        reads.dedup();
        Err(match reads.as_slice() {
            [] => "is not a variable of the model's chat template, which has none".into(),
            some => {
                format!("is not a variable of the model's chat template; its variables: {}", some.join(", "))
            }
        })
    }

    /// Renders the prompt. Control tokens count only in the template's own text; in messages, tools and variables they stay text. Tag
    /// tokens (`<think>`) stay text in messages of users and tools, and count in those of the assistant and the system. One exception:
    /// some templates search messages for tags (Qwen's takes a user message of one `<tool_response>` for a tool result); if this
    /// changes the rendered text, all tags count.
    ///
    /// A template that fails gets the tools once more with what optional fields would say.
    pub fn render(&self, input: &ChatInput) -> Result<Prompt, TemplateError> {
        let rendered = self.render_within(input, None);
        if !matches!(rendered, Err(TemplateError::Failed { .. })) {
            return rendered;
        }
        match input.tools.as_deref().and_then(plain_tools::plain) {
            Some(tools) => {
                self.render_within(&ChatInput { tools: Some(tools), ..input.clone() }, None).or(rendered)
            }
            None => rendered,
        }
    }

    /// Renders as [`Self::render`] does, within a budget that all probes of a model's load share. `None` if the template rejects the
    /// messages, and if the budget is spent: then [`ProbeBudget::missed`] has `what`.
    pub fn probe(&self, input: &ChatInput, budget: &ProbeBudget, what: &'static str) -> Option<Prompt> {
        for compiled in std::iter::once(&self.default).chain(&self.tool_use) {
            self.forms(compiled, Some(budget));
        }
        budget.probe(what, || self.render_within(input, Some(budget.shared())).ok())
    }

    /// `None` gives each run of the template a budget of its own.
    fn render_within(
        &self,
        input: &ChatInput,
        budget: Option<&Arc<Budget>>,
    ) -> Result<Prompt, TemplateError> {
        if input.messages.is_empty() {
            return Err(TemplateError::Input("the chat has no messages; give at least one".into()));
        }
        if let Some(name) = RESERVED.iter().find(|n| input.variables.contains_key(**n)) {
            return Err(TemplateError::Input(format!("the chat template's variable '{name}' cannot be set")));
        }
        let with_tools = input.tools.as_ref().is_some_and(|t| !t.is_empty());
        let compiled = self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.default);
        let messages = forms::shape(&input.messages, self.forms(compiled, None))?;

        let mut used = Used::default();
        used.text(&compiled.source);
        messages.iter().chain(input.tools.iter().flatten()).for_each(|v| used.value(v));
        input.variables.iter().for_each(|(k, v)| {
            used.text(k);
            used.value(v);
        });
        let mark = used.free().ok_or_else(|| {
            TemplateError::Input(
                "the chat uses every one of U+FDD0 to U+FDEF, which are no characters; leave one out".into(),
            )
        })?;

        // One time for all renderings: they are compared.
        let now_s = input.now_s.or(budget.map(|b| b.now_s())).unwrap_or_else(budget::now_s);
        bounds::apart(|| self.render_marked((compiled, budget), input, (&messages, now_s), mark))?
    }

    /// The form of the content of messages with this role; found by rendering some.
    pub fn content_form(&self, role: &str) -> ContentForm {
        self.forms(&self.default, None).content(role)
    }

    /// The form of call arguments; found by rendering some.
    pub fn arguments_form(&self) -> ArgumentsForm {
        self.forms(self.tool_use.as_ref().unwrap_or(&self.default), None).arguments
    }

    /// What was found with a budget that is spent is not kept: other probes may have spent it. The first request looks again, and keeps
    /// what it finds.
    fn forms(&self, compiled: &Compiled, budget: Option<&ProbeBudget>) -> Forms {
        if let Some(found) = compiled.forms.get() {
            return *found;
        }
        let own = ProbeBudget::default();
        let shared = budget.unwrap_or(&own);
        let found = self.find_forms(compiled, shared);
        if budget.is_some() && shared.is_spent() {
            return found;
        }
        *compiled.forms.get_or_init(|| found)
    }

    fn find_forms(&self, compiled: &Compiled, budget: &ProbeBudget) -> Forms {
        let now_s = budget.shared().now_s();
        Forms::find(|messages, tools| {
            let tools = (!tools.is_empty()).then(|| tools.to_vec());
            let input = ChatInput { tools, ..ChatInput::default() };
            budget.probe("the form of content and arguments", || {
                let rendered = bounds::apart(|| {
                    // The probes contain no tokens, so nothing needs a mark.
                    let (context, _) =
                        self.context(compiled, &input, (messages, now_s), ('\u{fdd0}', TagsIn::None));
                    run(compiled, context, Some(budget.shared()))
                });
                rendered.ok()?.ok()
            })
        })
    }

    /// The prompt, with `mark` in everything that must stay text.
    fn render_marked(
        &self,
        (compiled, budget): (&Compiled, Option<&Arc<Budget>>),
        input: &ChatInput,
        messages: (&[Value], i64),
        mark: char,
    ) -> Result<Prompt, TemplateError> {
        let render = |guarded: TagsIn| -> Result<(Prompt, bool), TemplateError> {
            let (context, any_tag) = self.context(compiled, input, messages, (mark, guarded));
            Ok((guard::unmark(&run(compiled, context, budget)?, mark), any_tag))
        };
        let (strict, any_tag) = render(TagsIn::All)?;
        if !any_tag {
            return Ok(strict);
        }
        let (loose, _) = render(TagsIn::None)?;
        if loose.text == strict.text {
            return Ok(strict);
        }
        // The template searches for tags: its own interpretation is the intended one. Most search in what the assistant said; then tags of
        // the others stay text.
        let (partial, _) = render(TagsIn::Others)?;
        Ok(if partial.text == loose.text { partial } else { loose })
    }

    /// All variables, marked; true if a tag was marked.
    fn context(
        &self,
        compiled: &Compiled,
        input: &ChatInput,
        (messages, now_s): (&[Value], i64),
        (mark, guarded): (char, TagsIn),
    ) -> (minijinja::Value, bool) {
        let mut any_tag = false;
        let mut marked = |v: &Value, tags: bool| {
            let mut v = v.clone();
            any_tag |= self.guard.mark(&mut v, mark, tags);
            minijinja::Value::from(Serde(v))
        };
        let messages: Vec<minijinja::Value> =
            messages.iter().map(|m| marked(m, guarded.include(m))).collect();
        let tools = match &input.tools {
            Some(t) => t.iter().map(|t| marked(t, false)).collect(),
            None => minijinja::Value::from(()),
        };
        let mut all: Vec<(String, minijinja::Value)> = vec![
            ("messages".into(), messages.into()),
            ("tools".into(), tools),
            ("documents".into(), minijinja::Value::from(())),
            ("add_generation_prompt".into(), input.add_generation_prompt.into()),
            ("strftime_now".into(), jinja::strftime_now(now_s)),
        ];
        all.extend(self.special.iter().map(|(k, v)| (k.to_string(), v.as_str().into())));
        if compiled.takes_functions() {
            // Without them, if they are nested too deep, the template fails.
            let functions = functions(input.tools.as_deref());
            all.extend(functions.map(|text| ("functions".into(), marked(&text.into(), false))));
            let now = strftime::strftime("%Y-%m-%d %H:%M:%S", now_s).unwrap_or_default();
            all.push(("datetime".into(), now.into()));
        }
        all.extend(input.variables.iter().map(|(k, v)| (k.clone(), marked(v, false))));
        (minijinja::Value::from_pairs(all), any_tag)
    }
}

impl Compiled {
    /// Whether it takes tools as text in the variable `functions`, and the time as `datetime`, both required: FireFunction 2.
    fn takes_functions(&self) -> bool {
        ["functions", "datetime"].iter().all(|name| self.reads.iter().any(|r| r == name))
    }
}

/// The functions of tools as JSON text, indented as FireFunction's model card does.
fn functions(tools: Option<&[Value]>) -> Option<String> {
    let functions: Value = tools.unwrap_or_default().iter().map(|tool| tool["function"].clone()).collect();
    let style =
        python::JsonStyle { indent: Some("    ".into()), item_separator: ",".into(), ..Default::default() };
    python::json(&minijinja::Value::from(Serde(functions)), &style).ok()
}

/// The messages whose tags (`<think>`) must stay text.
#[derive(Clone, Copy)]
enum TagsIn {
    /// All.
    All,
    /// All but the assistant's.
    Others,
    /// None.
    None,
}

impl TagsIn {
    fn include(self, message: &Value) -> bool {
        match self {
            Self::All => true,
            Self::Others => message["role"] != "assistant",
            Self::None => false,
        }
    }
}

fn compile(source: &str) -> Result<Compiled, TemplateError> {
    let syntax = |what| TemplateError::Syntax { what };
    bounds::check_source(source).map_err(syntax)?;
    // Line ends are those of Jinja2.
    let plain = jinja::without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let compiled = bounds::apart(|| {
        let env = jinja::environment(&plain).map_err(|e| in_words(&e))?;
        let reads = env.get_template(jinja::NAME).map_err(|e| in_words(&e))?.undeclared_variables(false);
        let functions: Vec<&str> = env.globals().map(|(name, _)| name).collect();
        let mut reads: Vec<String> = reads.into_iter().filter(|n| !functions.contains(&n.as_str())).collect();
        reads.sort_unstable();
        Ok((env, reads))
    });
    let (env, reads) = compiled?.map_err(syntax)?;
    Ok(Compiled { env, source: source.into(), plain, reads, forms: OnceLock::new() })
}

/// Whether a text contains a word.
fn mentions(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            let after = &text[at + word.len()..];
            !text[..at].ends_with(is_part) && !after.starts_with(is_part)
        })
}

fn run(
    compiled: &Compiled,
    context: minijinja::Value,
    budget: Option<&Arc<Budget>>,
) -> Result<String, TemplateError> {
    let budget = budget.map_or_else(Budget::of_one, Arc::clone);
    jinja::render(&compiled.plain, context, &budget).map_err(|e| {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
        while let Some(c) = cause {
            if let Some(jinja::TemplateException(message)) = c.downcast_ref() {
                return TemplateError::Refused(message.clone());
            }
            cause = c.source();
        }
        TemplateError::Failed { what: in_words(&e) }
    })
}

/// The template engine's message, its causes, and the template's line.
fn in_words(e: &minijinja::Error) -> String {
    use std::error::Error as _;
    let mut what = match (e.kind(), e.detail()) {
        (ErrorKind::OutOfFuel, _) => "it takes too many steps".to_string(),
        (kind, None) => kind.to_string(),
        (_, Some(detail)) => detail.to_string(),
    };
    if let Some(source) = e.source() {
        what = format!("{what}: {source}");
    }
    match e.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
