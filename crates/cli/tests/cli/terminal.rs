//! `octet run` at a pseudo-terminal: what a user types there, and what `vt100`, a terminal emulator, shows of the answer.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

use crate::common::Place;

/// For a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const PROMPT: &str = ">>> ";
const ALT_ENTER: &str = "\x1b\r";

/// A chat in a window.
struct Window {
    child: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    /// All received bytes.
    raw: Vec<u8>,
}

impl Window {
    fn open(place: &Place, args: &[&str], columns: u16, variables: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 60, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || -> OwnedFd { pty.slave.try_clone().unwrap() };
        let mut command = place.command(args);
        command.env("TERM", "xterm-256color").env("LANG", "C.UTF-8").envs(variables.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keyboard = File::from(pty.master);
        let mut reader = keyboard.try_clone().unwrap();
        let (send, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last process closes the other end.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if send.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, output, screen: vt100::Parser::new(60, columns, 2000), raw: Vec::new() }
    }

    /// The text of the screen, with wrapped lines joined.
    fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Waits until the screen is as expected.
    #[track_caller]
    fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if is(&text) {
                return text;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => {
                    self.screen.process(&bytes);
                    self.raw.extend(bytes);
                }
                Err(e) => panic!("{what}: {e}\n{text}"),
            }
        }
    }

    /// Waits for an empty prompt, and types.
    #[track_caller]
    fn types(&mut self, keys: &str) {
        self.until("a prompt", |text| text.trim_end().ends_with(PROMPT.trim_end()));
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line, and waits for its output and the next prompt.
    #[track_caller]
    fn enter(&mut self, line: &str) -> String {
        self.types("\x0c"); // an empty screen
        self.until("an empty screen", |text| text.trim() == PROMPT.trim());
        self.keyboard.write_all(format!("{line}\r").as_bytes()).unwrap();
        self.until("the next prompt", |text| {
            text.matches(PROMPT.trim()).count() > 1 && text.trim_end().ends_with(PROMPT.trim_end())
        })
    }

    #[track_caller]
    fn leave(mut self) -> ExitStatus {
        self.types("/bye\r");
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it did not end: {}", self.text());
            let _ = self.output.recv_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CHAT: &[&str] =
    &["run", "fox", "--temp", "0", "-t", "1", "-c", "1024", "--no-think", "--no-history", "-n", "40"];

#[test]
fn commands_show_experts_statistics_and_settings() {
    let place = Place::with_model("qwen3", "q8_0");
    let mut window = Window::open(&place, CHAT, 60, &[]);
    let text = window.enter("/experts");
    assert!(text.contains("there is no answer yet"), "{text}");
    let text = window.enter("Tell me a story about a fox.");
    assert!(text.contains("fox") && text.contains("tokens/s"), "{text}");
    assert!(text.lines().take_while(|l| !l.contains("tokens/s")).all(|l| l.chars().count() <= 60), "{text}");

    let text = window.enter("/experts");
    assert_eq!(text.lines().filter(|l| l.contains('▀')).count(), 4, "two of fox's 8 layers a line: {text}");
    assert!(text.contains("8 layers (down), 32 experts (across);") && text.contains(" 4 experts"), "{text}");
    let screen = window.screen.screen();
    let cells = (0..60).flat_map(|row| (0..60).filter_map(move |column| screen.cell(row, column)));
    let colours: std::collections::HashSet<String> =
        cells.filter(|c| c.contents() == "▀").map(|c| format!("{:?}", c.fgcolor())).collect();
    assert!(colours.len() > 4, "{colours:?}");

    let text = window.enter("/stats");
    for word in [
        "last answer    40 tokens",
        "1 answer, 40 tokens (",
        "tokens a step  ",
        "KV cache",
        "of 1024 tokens",
        "MiB in this process",
    ] {
        assert!(text.contains(word), "no '{word}': {text}");
    }
    let text = window.enter("/set temp 0.5");
    assert!(text.contains("\ntemperature 0.5"), "{text}");
    assert!(window.leave().success());
}

/// The beginning that a model's maker gives a conversation changes with the model; what the user set stays.
#[test]
fn another_model_begins_the_conversation_its_own_way() {
    let place = Place::with_model("qwen3", "q8_0");
    for (name, system) in [("mario", "You are Mario."), ("luigi", "You are Luigi.")] {
        let layers = [
            ("model", format!("{name}-w")),
            ("system", format!("{name}-s")),
            ("messages", format!("{name}-m")),
        ];
        let layer = |(kind, digest): &(&str, String)| {
            format!(
                r#"{{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "{digest}", "size": 1}}"#
            )
        };
        let layers = layers.iter().map(layer).collect::<Vec<_>>().join(", ");
        let root = place.path(".ollama/models");
        let manifest = root.join(format!("manifests/registry.ollama.ai/library/{name}/latest"));
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        std::fs::create_dir_all(root.join("blobs")).unwrap();
        std::fs::write(manifest, format!(r#"{{"layers": [{layers}]}}"#)).unwrap();
        std::fs::copy(place.path("model.gguf"), root.join(format!("blobs/{name}-w"))).unwrap();
        std::fs::write(root.join(format!("blobs/{name}-s")), system).unwrap();
        let messages = format!(
            r#"[{{"role": "user", "content": "Who?"}}, {{"role": "assistant", "content": "{name}"}}]"#
        );
        std::fs::write(root.join(format!("blobs/{name}-m")), messages).unwrap();
    }
    let args = ["run", "ollama:mario", "-n", "3", "-c", "1024", "-t", "1"];
    let mut window = Window::open(&place, &args, 80, &[]);
    let saved = |window: &mut Window, name: &str| {
        window.enter(&format!("/save {name}"));
        let text = std::fs::read_to_string(place.path(name)).unwrap();
        let chat: serde_json::Value = serde_json::from_str(&text).unwrap();
        let texts =
            chat["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap().to_string());
        texts.collect::<Vec<_>>()
    };
    window.enter("Hi there");
    let help = window.enter("/help");
    let aligned = "\n  /set                    show the settings\n  /set NAME VALUE         change one:";
    assert!(help.contains(aligned), "each command with its explanation on a line: {help}");
    let first = saved(&mut window, "first.json");
    assert_eq!(first[..4], ["You are Mario.", "Who?", "mario", "Hi there"]);
    window.enter("/model ollama:luigi");
    let second = saved(&mut window, "second.json");
    assert_eq!(second[..3], ["You are Luigi.", "Who?", "luigi"]);
    assert_eq!(second[3..], first[3..], "the conversation goes on");
    window.enter("/set system Be brief.");
    window.enter("/model ollama:mario");
    assert_eq!(saved(&mut window, "third.json")[..3], ["Be brief.", "Who?", "mario"]);
    window.enter("/clear");
    assert_eq!(saved(&mut window, "fourth.json"), ["Be brief.", "Who?", "mario"]);
    window.enter("/model model.gguf");
    assert_eq!(saved(&mut window, "fifth.json"), ["Be brief."]);
    assert!(window.leave().success());
}

#[test]
fn another_model_continues_the_conversation() {
    let place = Place::with_model("qwen3", "q8_0");
    let mut window = Window::open(&place, CHAT, 80, &[]);
    window.enter("My name is Anna.");
    window.enter("/set num_predict 3");
    let text = window.enter("/model none.gguf");
    assert!(text.contains("none.gguf: no such file"), "{text}");
    let text = window.enter("/model model.gguf");
    assert!(text.contains("model.gguf, 1024 tokens of context"), "{text}");
    window.enter("And mine?");
    let text = window.enter("/stats");
    assert!(
        text.contains("1 answer, 3 tokens"),
        "the setting stays, the figures are the new model's: {text}"
    );
    let text = window.enter("/experts");
    assert!(text.contains("no experts"), "{text}");
    window.enter("/save chat.json");
    let chat: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("chat.json")).unwrap()).unwrap();
    assert_eq!((&chat["model"], chat["messages"].as_array().unwrap().len()), (&"model.gguf".into(), 4));
    assert!(window.leave().success());
}

#[test]
fn texts_of_several_lines_are_typed_and_pasted() {
    let place = Place::new();
    let mut window = Window::open(&place, CHAT, 80, &[]);
    window.enter("/set num_predict 1");
    window.enter(&format!("one{ALT_ENTER}two"));
    window.enter("\"\"\"three\r\rfour\"\"\"");
    window.enter("\x1b[200~five\rsix\x1b[201~"); // as terminals paste
    window.enter("/sa\tchat.json"); // completed to /save
    let chat: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("chat.json")).unwrap()).unwrap();
    let said: Vec<&str> = chat["messages"]
        .as_array()
        .unwrap()
        .iter()
        .step_by(2)
        .map(|m| m["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["one\ntwo", "three\n\nfour", "five\nsix"]);
    assert!(window.leave().success());
}

#[test]
fn without_colours_there_are_no_control_sequences_in_an_answer() {
    let place = Place::new();
    let mut window = Window::open(&place, CHAT, 40, &[("NO_COLOR", "1"), ("LANG", "C")]);
    window.enter("Tell me a story about a fox.");
    let text = window.enter("/experts");
    assert!(text.contains('@') && text.is_ascii(), "{text}");
    let raw = String::from_utf8_lossy(&window.raw);
    assert!(!raw.contains("\x1b[1m") && !raw.contains("\x1b[38;5;") && !raw.contains("\x1b[2m"), "{raw:?}");
    assert!(window.leave().success());
}

#[test]
fn long_names_have_lines_of_their_own_in_a_narrow_window() {
    let place = Place::new();
    let name = "lmstudio-community/Qwen3-30B-A3B-Instruct-2507-GGUF/Qwen3-30B-A3B-Instruct-2507-Q4_K_M";
    let file = place.path(&format!(".lmstudio/models/{name}.gguf"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "GGUF").unwrap();
    let mut window = Window::open(&place, &["list"], 100, &[]);
    window.until("the model", |text| text.contains("LM Studio's"));
    let rows: Vec<String> = window.screen.screen().rows(0, 100).collect();
    let at = rows.iter().position(|row| *row == format!("lmstudio:{name}")).expect("a line of its own");
    assert!(rows[at + 1].starts_with("   ") && rows[at + 1].ends_with("just now, LM Studio's"), "{rows:#?}");
}

#[test]
fn a_table_fits_into_a_narrow_window() {
    let place = Place::new();
    let args = ["bench", "fox", "-p", "8", "-n", "2", "-r", "1", "--no-bandwidth"];
    let mut window = Window::open(&place, &args, 80, &[]);
    window.until("the last line", |text| text.contains("logits of tg2"));
    let rows: Vec<String> = window.screen.screen().rows(0, 80).collect();
    let table: Vec<&String> = rows.iter().filter(|row| row.starts_with('|')).collect();
    assert_eq!(table.len(), 4, "{rows:#?}");
    assert!(table.iter().all(|row| row.ends_with('|')), "{rows:#?}");
    assert!(rows.iter().any(|row| row.contains("parameters, on CPU with")), "{rows:#?}");
}
