//! The roles that a chat template accepts, found by rendering: templates reject unknown roles with their own errors, or drop them
//! silently. Called when a model is loaded.

use octet_api::core::{Roles, SystemPlace};
use octet_engine::template::{ChatInput, ChatTemplate, ProbeBudget};
use serde_json::{Map, Value, json};

/// Instructions that no template contains.
const PROBE: &str = "octet-probe-instructions";

/// What is probed here, for the warning about templates that are too slow.
const WHAT: &str = "the roles of messages";

/// The roles that a template accepts, found within the budget. If it rejects the simplest conversation, the first request reports why.
pub fn roles(template: &ChatTemplate, variables: &Map<String, Value>, budget: &ProbeBudget) -> Roles {
    let render = |roles: &[&str]| {
        let message = |role: &&str| {
            let content = if *role == "system" { PROBE } else { "text" };
            json!({"role": role, "content": content})
        };
        let input = input(roles.iter().map(message).collect(), variables);
        template.probe(&input, budget, WHAT).map(|prompt| prompt.text)
    };
    let shows =
        |roles: &[&str], times: usize| render(roles).is_some_and(|t| t.matches(PROBE).count() == times);
    if render(&["user"]).is_none() {
        return Roles::default();
    }
    let system =
        if shows(&["system", "user", "assistant", "system", "user"], 2) && shows(&["user", "system"], 1) {
            SystemPlace::Anywhere
        } else if shows(&["system", "user"], 1) {
            SystemPlace::First
        } else {
            SystemPlace::Nowhere
        };
    Roles {
        system,
        alternating: render(&["user", "user"]).is_none(),
        answers_results: refuses_user_after_result(template, variables, budget),
        begins_with_user: begins_with_user(&|messages| {
            template.probe(&input(messages, variables), budget, WHAT).is_some()
        }),
        images: false,
        videos: false,
    }
}

/// Whether the template writes `mark` for a video.
pub fn shows_video(
    template: &ChatTemplate,
    variables: &Map<String, Value>,
    budget: &ProbeBudget,
    mark: &str,
) -> bool {
    let message = json!({"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "text"}]});
    let prompt = template.probe(&input(vec![message], variables), budget, WHAT);
    prompt.is_some_and(|prompt| prompt.text.contains(mark))
}

/// True if the template renders these conversations only with an empty user message before the others, after the instructions.
fn begins_with_user(renders: &dyn Fn(Vec<Value>) -> bool) -> bool {
    let message = |role: &str| json!({"role": role, "content": "text"});
    [&["assistant"][..], &["assistant", "user"], &["system"]].iter().any(|roles| {
        let without: Vec<Value> = roles.iter().map(|role| message(role)).collect();
        let mut with = without.clone();
        let at = usize::from(roles[0] == "system");
        with.insert(at, json!({"role": "user", "content": ""}));
        !renders(without) && renders(with)
    })
}

/// A conversation to be answered.
fn input(messages: Vec<Value>, variables: &Map<String, Value>) -> ChatInput {
    ChatInput { messages, add_generation_prompt: true, variables: variables.clone(), ..ChatInput::default() }
}

/// True if the template renders a call and its result, but not a user message after them.
fn refuses_user_after_result(
    template: &ChatTemplate,
    variables: &Map<String, Value>,
    budget: &ProbeBudget,
) -> bool {
    // Mistral's templates want ids of nine characters.
    const ID: &str = "octet0123";
    let function = |arguments: Value| json!({"name": "probe", "arguments": arguments});
    [json!({}), json!("{}")].into_iter().any(|arguments| {
        let call = json!({"type": "function", "id": ID, "function": function(arguments)});
        let mut messages = vec![
            json!({"role": "user", "content": "text"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "content": "text", "tool_call_id": ID, "name": "probe"}),
        ];
        let renders =
            |messages: &[Value]| template.probe(&input(messages.to_vec(), variables), budget, WHAT).is_some();
        renders(&messages) && {
            messages.push(json!({"role": "user", "content": "text"}));
            !renders(&messages)
        }
    })
}
