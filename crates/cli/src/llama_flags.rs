//! llama.cpp's flags: spellings that differ from Octet's, and flags without effect here, which existing scripts use. Called by
//! `commands`.

use std::ffi::OsString;

/// The command line for clap, and notes for the user.
pub(crate) struct Line {
    pub args: Vec<OsString>,
    pub notes: Vec<String>,
}

/// llama.cpp's flags with one dash and several letters, which clap does not support, and Octet's spelling.
const SPELLINGS: [(&str, &str); 8] = [
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ub", "--ubatch-size"),
    ("-md", "--model-draft"),
    ("-np", "--parallel"),
    ("-hf", "--hf"),
    ("-hfr", "--hf"),
    ("-sys", "--system"),
];

/// The value of a flag.
#[derive(Clone, Copy, PartialEq)]
enum FlagValue {
    Nothing,
    Value,
    /// A word of [`SWITCHES`], or no value.
    Switch,
}

const SWITCHES: [&str; 5] = ["on", "off", "auto", "0", "1"];

const DEVICE: &str = "a model runs on one device as a whole; --device says which";
const FILE: &str = "how a model's file is read cannot be chosen";

/// Flags without effect and without a counterpart, and why.
const WITHOUT_EFFECT: [(&[&str], FlagValue, &str); 5] = [
    (
        &[
            "-ngl",
            "--n-gpu-layers",
            "--gpu-layers",
            "-ncmoe",
            "--n-cpu-moe",
            "-ot",
            "--override-tensor",
            "-ts",
            "--tensor-split",
            "-sm",
            "--split-mode",
            "-mg",
            "--main-gpu",
        ],
        FlagValue::Value,
        DEVICE,
    ),
    (&["-cmoe", "--cpu-moe"], FlagValue::Nothing, DEVICE),
    (&["-fa", "--flash-attn"], FlagValue::Switch, "there is one kind of attention here"),
    (&["--jinja"], FlagValue::Nothing, "chat templates are always read as Jinja"),
    (&["--mlock", "--no-mmap"], FlagValue::Nothing, FILE),
];

/// The command line in Octet's spelling, up to `--`: after it is only text.
pub(crate) fn read(args: impl Iterator<Item = OsString>) -> Line {
    let mut line = Line { args: Vec::new(), notes: Vec::new() };
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        if arg == "--" {
            line.args.push(arg);
            break;
        }
        let Some(text) = arg.to_str() else {
            line.args.push(arg);
            continue;
        };
        let (flag, value) = text.split_once('=').map_or((text, None), |(f, v)| (f, Some(v)));
        if let Some((_, takes, why)) = WITHOUT_EFFECT.iter().find(|(flags, ..)| flags.contains(&flag)) {
            line.notes.push(format!("{flag} has no effect here: {why}"));
            let is_switch = |next: &OsString| SWITCHES.iter().any(|s| next == s);
            if value.is_none()
                && (*takes == FlagValue::Value
                    || *takes == FlagValue::Switch && args.peek().is_some_and(is_switch))
            {
                args.next();
            }
            continue;
        }
        line.args.push(match SPELLINGS.iter().find(|(theirs, _)| *theirs == flag) {
            Some((_, ours)) => value.map_or(ours.to_string(), |v| format!("{ours}={v}")).into(),
            None => arg,
        });
    }
    line.args.extend(args);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(args: &[&str]) -> Line {
        read(args.iter().map(OsString::from))
    }

    #[test]
    fn spellings_of_llama_cpp_are_understood() {
        assert_eq!(
            ours(&["-ctk", "-ub=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]).args,
            ["--cache-type-k", "--ubatch-size=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]
        );
    }

    #[test]
    fn flags_without_effect_are_left_out_with_their_values_and_noted() {
        let line =
            ours(&["serve", "-ngl", "99", "fox", "-fa", "on", "--jinja", "-np", "2", "-fa", "--", "-ngl"]);
        assert_eq!(line.args, ["serve", "fox", "--parallel", "2", "--", "-ngl"]);
        assert_eq!(line.notes.len(), 4, "{:?}", line.notes);
        assert!(line.notes[0].starts_with("-ngl has no effect here: a model runs on one device"));
        assert_eq!(ours(&["-ngl=99", "fox", "-fa", "fox"]).args, ["fox", "fox"]);
    }
}
