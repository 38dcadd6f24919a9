//! What the model says, and when.
//!
//! A script is JSON: `{"tasks": [{"marker": TEXT, "answers": [{"think": TEXT, "text": TEXT, "expect": TEXT, "history": TEXT}]}], "otherwise": TEXT}`.
//! The task of a conversation is the first whose marker stands in its last user message that has one; the answer is the one whose
//! number is how often results of calls came after that. So it depends on nothing but the prompt. `text` may hold tool calls in the
//! model's own syntax; `expect` has to stand in the message that the answer follows, `history` anywhere in the prompt. `$COPY` in
//! `text` stands for what comes behind `copy` there, up to the next quote: the id of a sub-agent. `system` of a task has to stand in the system
//! message, and a task with `"tools": false` is one without tools: an agent that asks for a title repeats the user's words.

use serde::Deserialize;

/// All that it says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    tasks: Vec<Task>,
    /// Where no task is given.
    otherwise: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    marker: String,
    #[serde(default)]
    system: String,
    #[serde(default = "yes")]
    tools: bool,
    answers: Vec<Answer>,
}

fn yes() -> bool {
    true
}

/// What the model says once.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Reasoning.
    #[serde(default)]
    pub think: String,
    /// Text and tool calls.
    pub text: String,
    #[serde(default)]
    expect: String,
    #[serde(default)]
    history: String,
    #[serde(default)]
    copy: String,
}

/// A message of the prompt, as the template wrote it.
pub struct Turn {
    /// `system`, `user`, `assistant`, or `tool` for results of calls.
    pub role: String,
    /// Its text.
    pub text: String,
}

/// An answer, and what is to be said of it in the log.
pub struct Chosen {
    /// The answer.
    pub answer: Answer,
    /// The task's marker; empty without one.
    pub task: String,
    /// Number of the answer within the task.
    pub step: usize,
    /// What was not as the script expects it.
    pub failure: Option<String>,
}

impl Script {
    /// Reads a script.
    pub fn read(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// The answer to a prompt.
    pub fn choose(&self, turns: &[Turn]) -> Chosen {
        let system = turns.first().filter(|t| t.role == "system").map_or("", |t| t.text.as_str());
        let has_tools = system.contains("<tools>");
        let task_of = |turn: &Turn| {
            let holds = |t: &&Task| {
                turn.text.contains(&t.marker) && system.contains(&t.system) && t.tools == has_tools
            };
            self.tasks.iter().find(holds).filter(|_| turn.role == "user")
        };
        let other = || {
            let answer = Answer { text: self.otherwise.clone(), ..Answer::default() };
            Chosen { answer, task: String::new(), step: 0, failure: None }
        };
        let found = turns.iter().enumerate().rev().find_map(|(at, turn)| Some((at, task_of(turn)?)));
        let Some((at, task)) = found else {
            return other();
        };
        // Not answers: some programs keep the text and the calls of one as two messages.
        let returned = |pair: &&[Turn]| pair[1].role == "tool" && pair[0].role != "tool";
        let step = turns[at..].windows(2).filter(returned).count();
        // What this answers: results, and what the program adds to them.
        let news = turns.iter().rposition(|t| t.role == "assistant").map_or(0, |a| a + 1);
        let last = turns[news..].iter().map(|t| t.text.as_str()).collect::<Vec<_>>().join("\n");
        // Behind a task's end a program may ask for something else: what to remember, what to do next.
        let is_other = news > at && !turns[news..].iter().any(|t| t.role == "tool");
        let failed = |failure: String| {
            let answer = Answer { text: format!("SCRIPT: {failure}"), ..Answer::default() };
            Chosen { answer, task: task.marker.clone(), step, failure: Some(failure) }
        };
        match task.answers.get(step) {
            _ if is_other => other(),
            None => failed(format!("'{}' has no answer {step}", task.marker)),
            Some(a) if !last.contains(&a.expect) => {
                let last: String = last.chars().take(2000).collect();
                failed(format!("expected '{}' before answer {step} and got: {last}", a.expect))
            }
            Some(a) if !turns.iter().any(|t| t.text.contains(&a.history)) => {
                failed(format!("expected '{}' in the history before answer {step}", a.history))
            }
            Some(a) => {
                let copied =
                    last.split_once(&a.copy).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default();
                let answer = Answer { text: a.text.replace("$COPY", copied), ..a.clone() };
                Chosen { answer, task: task.marker.clone(), step, failure: None }
            }
        }
    }
}
