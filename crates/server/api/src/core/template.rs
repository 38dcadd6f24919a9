//! Converts a conversation to the form that chat templates take.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Chat, Image, Message, Part, Role, Tool, ToolCall};
use crate::ApiError;
use crate::rules::{self, Warning};

/// What a template accepts: roles, images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Where it accepts instructions.
    pub system: SystemPlace,
    /// It refuses two adjacent user messages.
    pub alternating: bool,
    /// After a tool result it accepts the model's answer only: it refuses a user message there.
    pub answers_results: bool,
    /// The first message after leading instructions must be the user's: without it, it refuses some conversations.
    pub begins_with_user: bool,
    /// The model sees images: its template has a form for `{"type": "image"}`.
    pub images: bool,
    /// It reads lists of frames as videos, too: its template has a form for `{"type": "video"}`.
    pub videos: bool,
}

/// Where a template accepts instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemPlace {
    /// Anywhere.
    Anywhere,
    /// As the first message only.
    First,
    /// Nowhere: it has no system role.
    Nowhere,
}

impl Default for Roles {
    fn default() -> Self {
        Self {
            system: SystemPlace::Anywhere,
            alternating: false,
            answers_results: false,
            begins_with_user: false,
            images: false,
            videos: false,
        }
    }
}

/// The inputs of a chat template.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateChat {
    /// `{"role", "content", ...}` each; arguments of calls are mappings.
    pub messages: Vec<Value>,
    /// The images of the messages, in order: each is a `{"type": "image"}` in a list of content, and all frames of a video are one
    /// `{"type": "video"}`.
    pub images: Vec<Image>,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}` each; `None` for none.
    pub tools: Option<Vec<Value>>,
    /// The client's variables, with `enable_thinking` and `reasoning_effort` from its other settings.
    pub variables: Map<String, Value>,
    /// End the prompt with the beginning of an answer; else it ends with the last message, or within it.
    pub add_generation_prompt: bool,
    /// Parts of the conversation that the model does not see.
    pub warnings: Vec<Warning>,
}

/// A piece of a message's content.
enum Piece<'a> {
    Text(Cow<'a, str>),
    Image(&'a Image),
}

impl From<String> for Piece<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// A message being converted.
struct Turn<'a> {
    role: Role,
    content: Vec<Piece<'a>>,
    /// The source of its calls, reasoning and names.
    message: Option<&'a Message>,
}

impl Chat {
    /// Converts this conversation for a chat template.
    ///
    /// Instructions (system and developer messages) stay where they are, with these exceptions. All but the last depend only on the
    /// messages before them, so a longer conversation keeps the shorter one's prompt as its prefix:
    ///
    /// - Leading instructions are merged, separated by a blank line.
    /// - A later one becomes a user message within `<system>` and `</system>`, if the template accepts instructions only at the
    ///   beginning.
    /// - Leading ones are prepended to the first user message, if the template accepts none.
    /// - An empty user message is inserted after leading instructions, if the template needs one there and the client sent none.
    /// - Adjacent user messages are merged, if the template refuses them.
    /// - A user message after tool results is appended to that of the last call, within `<user>` and `</user>`, if the template refuses
    ///   it there. It comes before the template's end of the result. Lines of results that begin with such a mark begin with `&lt;`
    ///   instead of `<`, so that results cannot contain what looks like the user's words.
    ///
    /// Several texts of a message are a list of `{"type": "text", "text": ...}`, with `{"type": "image"}` for each image and `{"type": "video"}` for
    /// each video. If the model reads text only, an image is replaced by a text that says that it is not shown, as are documents always.
    ///
    /// # Errors
    /// An image in the current user message that is not shown: the answer would ignore it.
    pub fn template(&self, roles: Roles) -> Result<TemplateChat, ApiError> {
        let mut warnings = Vec::new();
        let turns = self.turns(roles, &mut warnings)?;
        let mut messages: Vec<Value> = Vec::with_capacity(turns.len());
        let mut images = Vec::new();
        // The called tools by call id: some templates name them with the results.
        let mut called: HashMap<&str, &str> = HashMap::new();
        for turn in turns {
            let mut json = turn.to_json();
            images.extend(turn.content.iter().filter_map(|piece| match piece {
                Piece::Text(_) => None,
                Piece::Image(image) => Some((*image).clone()),
            }));
            if let Some(message) = turn.message {
                called.extend(message.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str())));
                if message.role == Role::Tool
                    && message.name.is_none()
                    && let Some(name) = message.tool_call_id.as_deref().and_then(|id| called.get(id))
                {
                    json["name"] = (*name).into();
                }
            }
            messages.push(json);
        }
        let mut variables = self.template_kwargs.clone();
        if let Some(enabled) = self.reasoning.enabled {
            variables.entry("enable_thinking").or_insert(enabled.into());
        }
        if let Some(effort) = self.reasoning.effort {
            variables.entry("reasoning_effort").or_insert(effort.name().into());
        }
        Ok(TemplateChat {
            messages,
            images,
            tools: (!self.tools.is_empty()).then(|| self.tools.iter().map(Tool::to_json).collect()),
            variables,
            add_generation_prompt: !self.continue_final && !self.no_answer,
            warnings,
        })
    }

    /// The messages as a template with these roles accepts them.
    fn turns(&self, roles: Roles, warnings: &mut Vec<Warning>) -> Result<Vec<Turn<'_>>, ApiError> {
        let asked = self.current_turn();
        let leading = self.messages.iter().take_while(|m| is_instruction(m)).count();
        let mut out: Vec<Turn<'_>> = Vec::with_capacity(self.messages.len());
        let mut instructions = Vec::new();
        for message in &self.messages[..leading] {
            instructions.push(pieces(message, roles, false, warnings)?);
        }
        // A single one keeps its parts: the template has a form for them.
        let mut system = match instructions.len() {
            0 => None,
            1 => instructions.pop(),
            _ => Some(join(instructions.into_iter().flat_map(one_text), "\n\n")),
        };
        if roles.system != SystemPlace::Nowhere
            && let Some(content) = system.take()
        {
            out.push(Turn { role: Role::System, content, message: None });
        }
        // Whatever comes later, so that a longer conversation has the same beginning.
        let begins_with_user = self.messages.get(leading).is_some_and(|m| m.role == Role::User);
        if roles.begins_with_user && !begins_with_user {
            out.push(Turn { role: Role::User, content: system.take().unwrap_or_default(), message: None });
        }
        for (i, message) in self.messages.iter().enumerate().skip(leading) {
            let mut content = pieces(message, roles, asked.contains(&i), warnings)?;
            if roles.answers_results && message.role == Role::Tool {
                content.iter_mut().for_each(escape_marks);
            }
            let mut turn = if !is_instruction(message) {
                Turn { role: message.role, content, message: Some(message) }
            } else if roles.system == SystemPlace::Anywhere {
                Turn { role: Role::System, content, message: None }
            } else {
                let content = within("<system>\n", join(content, "\n"), "\n</system>");
                Turn { role: Role::User, content, message: None }
            };
            if turn.role == Role::User
                && let Some(content) = system.take()
            {
                turn.prepend(content);
            }
            if roles.answers_results
                && turn.role == Role::User
                && out.last().is_some_and(|last| last.role == Role::Tool)
            {
                sort_last_results(&mut out);
                let Some(result) = out.last_mut() else { continue };
                result.append(turn);
                continue;
            }
            match out
                .last_mut()
                .filter(|last| roles.alternating && last.role == Role::User && turn.role == Role::User)
            {
                Some(last) => {
                    turn.prepend(std::mem::take(&mut last.content));
                    last.content = turn.content;
                }
                None => out.push(turn),
            }
        }
        // There is no user message yet.
        out.extend(system.map(|content| Turn { role: Role::User, content, message: None }));
        Ok(out)
    }

    /// The messages of the current user turn: those after the last answer, tool results included.
    pub(crate) fn current_turn(&self) -> std::ops::Range<usize> {
        let end = self.messages.len() - usize::from(self.continue_final && !self.messages.is_empty());
        let answered = self.messages[..end].iter().rposition(|m| m.role == Role::Assistant);
        let begin = answered.map_or(0, |i| i + 1);
        let tools = self.messages[begin..end].iter().position(|m| m.role == Role::Tool);
        begin..tools.map_or(end, |n| begin + n)
    }
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// The content of a message. What the model does not see is refused in the current turn, and elsewhere replaced by a text.
fn pieces<'a>(
    message: &'a Message,
    roles: Roles,
    is_asked: bool,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Piece<'a>>, ApiError> {
    let mut out = Vec::with_capacity(message.content.len());
    for part in &message.content {
        let image = match part {
            Part::Text { text, .. } => {
                out.push(Piece::Text(Cow::Borrowed(text.as_str())));
                continue;
            }
            Part::Image { image, .. } => image,
        };
        let what = match image.frame {
            _ if image.is_video() => "a video",
            _ if image.is_document() => "a document",
            None if roles.images => "",
            Some(_) if roles.images && roles.videos => "",
            None => "an image",
            Some(_) => "a video",
        };
        if what.is_empty() {
            out.push(Piece::Image(image));
            continue;
        }
        let reads = match (roles.images, roles.videos) {
            (true, true) => "text, images and videos",
            (true, false) => "text and images",
            (false, _) => "text",
        };
        let frame = if image.frame.is_some() { "a frame of " } else { "" };
        let why = format!("is {frame}{what}, and this model reads {reads} only");
        if is_asked {
            let instead = if what == "a video" && roles.images { "its frames as images" } else { "text" };
            return Err(ApiError::invalid(image.at.clone(), format!("'{}' {why}; send {instead}", image.at)));
        }
        // A video is named once.
        if image.frame.is_none_or(|frame| frame.number == 0) {
            rules::warn(warnings, Warning::new(image.at.clone(), format_args!("{why}: it is left out")));
            out.push(Piece::from(format!("[Here was {what}. This model reads {reads} only.]")));
        }
    }
    Ok(out)
}

/// Joins adjacent texts; images stay where they are.
fn join<'a>(pieces: impl IntoIterator<Item = Piece<'a>>, separator: &str) -> Vec<Piece<'a>> {
    let mut out: Vec<Piece<'a>> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(text)) => {
                let last = last.to_mut();
                last.push_str(separator);
                last.push_str(&text);
            }
            (_, piece) => out.push(piece),
        }
    }
    out
}

/// The texts of a message joined by lines; without any, an empty text.
fn one_text(pieces: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    let joined = join(pieces, "\n");
    if joined.is_empty() { vec![Piece::from(String::new())] } else { joined }
}

/// Content between two texts.
fn within<'a>(before: &str, content: Vec<Piece<'a>>, after: &str) -> Vec<Piece<'a>> {
    let text = |text: &str| Piece::from(text.to_string());
    join(std::iter::once(text(before)).chain(content).chain([text(after)]), "")
}

/// Escapes what begins a line like the marks around users' words and instructions.
fn escape_marks(piece: &mut Piece<'_>) {
    const MARKS: [&str; 4] = ["<user>", "</user>", "<system>", "</system>"];
    let Piece::Text(text) = piece else { return };
    let is_mark = |line: &str| MARKS.iter().any(|mark| line.starts_with(mark));
    let lines = || text.split_inclusive(['\n', '\r']);
    if lines().any(is_mark) {
        let escaped =
            lines().map(|line| if is_mark(line) { format!("&lt;{}", &line[1..]) } else { line.into() });
        *text = Cow::Owned(escaped.collect());
    }
}

/// Sorts the tool results at the end as their calls are: templates for single calls move each result to its call.
fn sort_last_results(turns: &mut [Turn<'_>]) {
    let first = turns.iter().rposition(|turn| turn.role != Role::Tool).map_or(0, |i| i + 1);
    let (before, results) = turns.split_at_mut(first);
    let Some(message) = before.last().and_then(|turn| turn.message) else { return };
    let places: HashMap<&str, usize> =
        message.tool_calls.iter().enumerate().map(|(i, call)| (call.id.as_str(), i)).collect();
    results.sort_by_key(|result| {
        let id = result.message.and_then(|m| m.tool_call_id.as_deref());
        id.and_then(|id| places.get(id)).copied().unwrap_or(usize::MAX)
    });
}

impl<'a> Turn<'a> {
    /// Prepends content, separated by a blank line.
    fn prepend(&mut self, mut before: Vec<Piece<'a>>) {
        before.append(&mut self.content);
        self.content = join(before, "\n\n");
    }

    /// Adds a user message to this tool result. Instructions are marked already.
    fn append(&mut self, message: Turn<'a>) {
        let is_users = message.message.is_some();
        let content = join(message.content, "\n");
        let (open, close) = if is_users { ("\n\n<user>\n", "\n</user>") } else { ("\n\n", "") };
        let result = join(std::mem::take(&mut self.content), "\n");
        self.content = join(result.into_iter().chain(within(open, content, close)), "");
    }

    fn to_json(&self) -> Value {
        let piece = |piece: &Piece<'_>| match piece {
            Piece::Text(text) => Some(json!({"type": "text", "text": text})),
            Piece::Image(image) => match image.frame {
                None => Some(json!({"type": "image"})),
                Some(frame) => (frame.number == 0).then(|| json!({"type": "video"})),
            },
        };
        let content = match self.content.as_slice() {
            [] => Value::from(""),
            [Piece::Text(one)] => Value::from(one.as_ref()),
            many => many.iter().filter_map(piece).collect(),
        };
        let mut out = json!({"role": self.role.name(), "content": content});
        let Some(message) = self.message else { return out };
        if let Some(text) = message.reasoning_text() {
            out["reasoning_content"] = text.into();
        }
        if !message.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                let function = json!({"name": call.name, "arguments": call.arguments_object()});
                json!({"type": "function", "id": call.id, "function": function})
            };
            out["tool_calls"] = message.tool_calls.iter().map(call).collect();
        }
        if let Some(id) = &message.tool_call_id {
            out["tool_call_id"] = id.as_str().into();
        }
        if let Some(name) = &message.name {
            out["name"] = name.as_str().into();
        }
        out
    }
}

impl Tool {
    /// The tool in the form that models are trained on: always these keys, in this order, so that the same tools make the same prompt
    /// in every dialect. The schema keeps the client's order.
    pub fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone().into());
        json!({"type": "function", "function": function})
    }
}
