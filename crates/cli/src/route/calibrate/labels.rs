//! Parses a line of prompts.jsonl: a request, and checks of the right answer.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use octet_api::core::GenerateRequest;
use octet_api::openai;
use octet_config::Pattern;
use serde_json::{Map, Value, json};

/// Time limit of a test.
const TEST_TIME_MAX: Duration = Duration::from_secs(10);

/// A line.
#[derive(Debug)]
pub struct Prompt {
    /// The request, sampled greedily.
    pub request: GenerateRequest,
    /// Checks of a right answer; all must hold. Empty: the line has no label.
    pub checks: Vec<Check>,
}

/// A check of a right answer.
#[derive(Debug)]
pub enum Check {
    /// It contains one of these word sequences; case and punctuation are ignored.
    Answer(Vec<Vec<String>>),
    /// It matches this expression.
    Regex(Pattern),
    /// This command, with the answer on standard input, exits with 0.
    Test(String),
}

impl Prompt {
    /// Parses a line. `run_tests` allows commands.
    pub fn read(line: &str, max_tokens: usize, run_tests: bool) -> anyhow::Result<Self> {
        let mut wire: Map<String, Value> = serde_json::from_str(line).context("not a JSON object")?;
        let mut checks = Vec::new();
        if let Some(answer) = wire.remove("answer") {
            let all = texts(answer).context("answer is a text, a number, or a list of them")?;
            let all: Vec<Vec<String>> = all.iter().map(|a| words(a)).collect();
            anyhow::ensure!(!all.is_empty() && all.iter().all(|a| !a.is_empty()), "answer is empty");
            checks.push(Check::Answer(all));
        }
        if let Some(regex) = wire.remove("regex") {
            let pattern = regex.as_str().context("regex is a text")?;
            let pattern = Pattern::new(pattern).map_err(|e| anyhow::anyhow!("regex: {e}"))?;
            checks.push(Check::Regex(pattern));
        }
        if let Some(tests) = wire.remove("tests") {
            let all = texts(tests).context("tests is a command, or a list of commands")?;
            anyhow::ensure!(run_tests, "it has tests, which are commands: --run-tests runs them");
            checks.extend(all.into_iter().map(Check::Test));
        }
        if let Some(prompt) = wire.remove("prompt") {
            wire.insert("messages".into(), json!([{"role": "user", "content": prompt}]));
        }
        wire.insert("model".into(), "m".into());
        let read = openai::chat::parse(Value::from(wire).to_string().as_bytes());
        let mut request = read.map_err(|e| anyhow::anyhow!(e.message))?;
        request.max_tokens = request.max_tokens.or(u32::try_from(max_tokens).ok());
        // The router's measurements are greedy, too.
        request.sampling.temperature = Some(0.0);
        request.stream = true;
        request.n = 1;
        Ok(Self { request, checks })
    }

    /// Whether `answer` is right; `None` without a label.
    pub fn is_right(&self, answer: &str) -> anyhow::Result<Option<bool>> {
        for check in &self.checks {
            if !check.holds(answer)? {
                return Ok(Some(false));
            }
        }
        Ok((!self.checks.is_empty()).then_some(true))
    }
}

impl Check {
    fn holds(&self, answer: &str) -> anyhow::Result<bool> {
        match self {
            Self::Answer(any) => {
                let given = words(answer);
                Ok(any.iter().any(|wanted| given.windows(wanted.len()).any(|w| w == wanted)))
            }
            Self::Regex(pattern) => Ok(pattern.is_match(answer)),
            Self::Test(command) => passes(command, answer),
        }
    }
}

/// A string or number, or a list of them.
fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(all) => all.into_iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Words and numbers in lower case. A number keeps its sign and decimal point, `-3.5`; thousands separators are removed.
fn words(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |i: Option<usize>| i.and_then(|i| chars.get(i)).is_some_and(char::is_ascii_digit);
    let mut out = Vec::new();
    let mut word = String::new();
    for (i, c) in chars.iter().enumerate() {
        let between = digit(i.checked_sub(1)) && digit(Some(i + 1));
        let is_sign = *c == '-' && digit(Some(i + 1)) && (i == 0 || chars[i - 1].is_whitespace());
        match c {
            ',' if between => {}
            '.' if between => word.push('.'),
            '-' if is_sign => word.push('-'),
            c if c.is_alphanumeric() => word.extend(c.to_lowercase()),
            _ if !word.is_empty() => out.push(std::mem::take(&mut word)),
            _ => {}
        }
    }
    out.extend((!word.is_empty()).then_some(word));
    out
}

/// Runs a command with the answer on standard input.
fn passes(command: &str, answer: &str) -> anyhow::Result<bool> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A separate process group, so that its children end with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    let mut child = shell.spawn().context("tests run in a shell, and sh cannot be started")?;
    let mut stdin = child.stdin.take().context("a test has no standard input")?;
    let text = answer.to_string();
    // A test need not read its input.
    let writer = std::thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    let until = Instant::now() + TEST_TIME_MAX;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() >= until => {
                #[cfg(unix)]
                if let Ok(group) = i32::try_from(child.id()) {
                    use nix::sys::signal::{Signal, killpg};
                    killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL)?;
                }
                #[cfg(not(unix))]
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Processes left running by a test may keep the pipe open: its end is not waited for.
    drop(writer);
    Ok(status.is_some_and(|s| s.success()))
}

/// The overlap of two texts, 0 to 1: the F1 score of their words.
pub fn agreement(a: &str, b: &str) -> f64 {
    let (a, mut b) = (words(a), words(b));
    let all = a.len() + b.len();
    if all == 0 {
        return 1.0;
    }
    let mut common = 0;
    for word in &a {
        if let Some(at) = b.iter().position(|w| w == word) {
            b.swap_remove(at);
            common += 1;
        }
    }
    2.0 * f64::from(common) / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> anyhow::Result<Prompt> {
        Prompt::read(line, 9, true)
    }

    #[test]
    fn a_line_is_a_prompt_or_a_request() {
        let asked = read(r#"{"prompt": "Why?", "temperature": 1}"#).unwrap().request;
        assert_eq!((asked.max_tokens, asked.stream, asked.sampling.temperature), (Some(9), true, Some(0.0)));
        let line = r#"{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 3}"#;
        assert_eq!(read(line).unwrap().request.max_tokens, Some(3));
        for line in ["\"Why?\"", "[1]", "7", "{", "{}"] {
            assert!(read(line).is_err(), "{line}");
        }
        for label in [
            r#""answer": {}"#,
            r#""answer": """#,
            r#""answer": []"#,
            r#""answer": [["Paris", "Lyon"], "Nice"]"#,
            r#""tests": [["true", "false"]]"#,
            r#""regex": "(""#,
            r#""tests": 7.5e999"#,
        ] {
            assert!(read(&format!(r#"{{"prompt": "Why?", {label}}}"#)).is_err(), "{label}");
        }
        let with_tests = r#"{"prompt": "Why?", "tests": "true"}"#;
        assert!(Prompt::read(with_tests, 9, false).unwrap_err().to_string().contains("--run-tests"));
    }

    #[test]
    fn labels_say_what_is_right() {
        let right = |label: &str, answer: &str| {
            read(&format!(r#"{{"prompt": "Why?"{label}}}"#)).unwrap().is_right(answer).unwrap()
        };
        for (label, answer, expected) in [
            ("", "x", None),
            (r#", "answer": "Paris""#, "It is PARIS.", Some(true)),
            (r#", "answer": "Paris""#, "It is Parisian.", Some(false)),
            (r#", "answer": 7"#, "3 + 4 = 7.", Some(true)),
            (r#", "answer": 7"#, "17", Some(false)),
            (r#", "answer": 7"#, "7.5", Some(false)),
            (r#", "answer": -7"#, "It is 7.", Some(false)),
            (r#", "answer": -7"#, "It is -7.", Some(true)),
            (r#", "answer": 1200"#, "It is 1,200.", Some(true)),
            (r#", "answer": ["New York", "Boston"]"#, "the new\nyork times", Some(true)),
            (r#", "regex": "^\\s*[Yy]es\\b""#, " Yes, it is", Some(true)),
            (r#", "regex": "^[Yy]es", "answer": "blue""#, "Yes, red", Some(false)),
        ] {
            assert_eq!(right(label, answer), expected, "{label} {answer}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn tests_get_the_answer() {
        let right = |tests: &str, answer: &str| {
            read(&format!(r#"{{"prompt": "Why?", "tests": {tests}}}"#)).unwrap().is_right(answer).unwrap()
        };
        assert_eq!(right(r#""grep -q seven""#, "it is seven"), Some(true));
        assert_eq!(right(r#"["grep -q seven", "grep -q eight"]"#, "it is seven"), Some(false));
        // A test that does not read a long answer.
        assert_eq!(right(r#""true""#, &"x".repeat(1 << 20)), Some(true));
    }

    #[test]
    fn agreement_is_of_words() {
        assert_eq!(agreement("It is Paris.", "it is paris"), 1.0);
        assert_eq!((agreement("", ""), agreement("a", ""), agreement("a b", "b c")), (1.0, 0.0, 0.5));
    }
}
