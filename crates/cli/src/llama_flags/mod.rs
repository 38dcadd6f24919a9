//! llama.cpp's flags in existing scripts: other spellings, flags without effect here, and those that are refused by name.

pub(crate) mod env;
mod table;

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::usage_error::Usage;
use table::{DEFAULTS, FLAGS, Meaning, SWITCHES, Takes};

/// The command line for clap, and notes for the user.
pub(crate) struct Line {
    pub args: Vec<OsString>,
    pub notes: Vec<String>,
}

/// The command line in Octet's spelling, up to `--`: after it is only text. `command` has Octet's own flags, which are left as they
/// are. Fails for a flag that would change answers and has no counterpart.
pub(crate) fn read(args: impl Iterator<Item = OsString>, command: &clap::Command) -> Result<Line, Usage> {
    let mut line = Line { args: Vec::new(), notes: Vec::new() };
    let mut args = args.peekable();
    let mut own = None;
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            line.args.push(arg);
            continue;
        };
        if text == "--" {
            line.args.push(arg);
            break;
        }
        if !text.starts_with('-') {
            own = own.or_else(|| command.find_subcommand(text).map(flags));
            line.args.push(arg);
            continue;
        }
        let (flag, inline) = text.split_once('=').map_or((text, None), |(f, v)| (f, Some(v)));
        let is_default = |value: &str| DEFAULTS.iter().any(|(flags, v)| *v == value && names(flags, flag));
        if inline.map_or_else(|| args.peek().and_then(|v| v.to_str()).is_some_and(is_default), is_default) {
            if inline.is_none() {
                args.next();
            }
            continue;
        }
        let is_own = own.as_ref().is_some_and(|own: &BTreeSet<String>| own.contains(flag));
        let row = FLAGS.iter().find(|(flags, ..)| !is_own && names(flags, flag));
        match row.map(|(_, takes, meaning)| (*takes, *meaning)) {
            None => line.args.push(arg),
            Some((_, Meaning::Refused(why))) => {
                return Err(Usage(format!("{flag} is not supported: {why}")));
            }
            Some((takes, Meaning::Ignored(why))) => {
                line.notes.push(format!("{flag} has no effect here: {why}"));
                let is_switch = |next: &OsString| SWITCHES.iter().any(|s| next == s);
                let has_value =
                    takes == Takes::Value || takes == Takes::Switch && args.peek().is_some_and(is_switch);
                if inline.is_none() && has_value {
                    args.next();
                }
            }
            Some((_, Meaning::Here(ours))) => match inline {
                None if ours.ends_with(':') => {
                    let value = args.next().unwrap_or_default();
                    line.args.push([OsString::from(ours), value].into_iter().collect());
                }
                None => line.args.push(ours.into()),
                Some(value) if ours.ends_with(':') => line.args.push(format!("{ours}{value}").into()),
                Some(value) => line.args.push(format!("{ours}={value}").into()),
            },
        }
    }
    line.args.extend(args);
    Ok(line)
}

/// Whether `flag` is one of `flags`.
fn names(flags: &str, flag: &str) -> bool {
    flags.split(' ').any(|f| f == flag)
}

/// The flags of a command, with their dashes.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for arg in command.get_arguments() {
        let long = arg.get_long_and_visible_aliases().unwrap_or_default();
        let hidden = arg.get_all_aliases().unwrap_or_default();
        out.extend(long.into_iter().chain(hidden).map(|l| format!("--{l}")));
        out.extend(arg.get_short().map(|s| format!("-{s}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_line(args: &[&str]) -> Result<Line, String> {
        read(args.iter().map(OsString::from), &crate::commands::command()).map_err(|e| e.to_string())
    }

    fn ours(args: &[&str]) -> Line {
        read_line(args).unwrap()
    }

    #[test]
    fn spellings_of_llama_cpp_are_understood() {
        assert_eq!(
            ours(&["-ctk", "-ub=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]).args,
            ["--cache-type-k", "--ubatch-size=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]
        );
        assert_eq!(
            ours(&["-hfd", "a/b:Q4", "-hfd=c/d"]).args,
            ["--model-draft=hf:a/b:Q4", "--model-draft=hf:c/d"]
        );
    }

    #[test]
    fn flags_without_effect_are_left_out_with_their_values_and_noted() {
        let line =
            ours(&["serve", "-ngl", "99", "fox", "-fa", "on", "--jinja", "-np", "2", "-fa", "--", "-ngl"]);
        assert_eq!(line.args, ["serve", "fox", "--parallel", "2", "--", "-ngl"]);
        assert_eq!(line.notes.len(), 4, "{:?}", line.notes);
        assert!(line.notes[0].starts_with("-ngl has no effect here: all of a model's layers"));
        assert_eq!(ours(&["-ngl=99", "fox", "-fa", "fox"]).args, ["fox", "fox"]);
        // `-t` and `-c` are flags with a value: these are not `b`.
        assert_eq!(ours(&["serve", "-tb", "2", "-cb", "fox"]).args, ["serve", "fox"]);
    }

    #[test]
    fn common_flags_of_vllm_are_noted() {
        let line = ours(&[
            "serve",
            "--gpu-memory-utilization",
            "0.9",
            "fox",
            "--enable-auto-tool-choice",
            "--reasoning-parser",
            "qwen3",
            "--tool-call-parser",
            "hermes",
            "-tp",
            "1",
            "--tensor-parallel-size=1",
            "--trust-remote-code",
        ]);
        assert_eq!(line.args, ["serve", "fox", "--tool-call-parser", "hermes"]);
        assert_eq!(line.notes.len(), 6, "{:?}", line.notes);
    }

    #[test]
    fn what_changes_answers_is_refused_by_name() {
        for (flag, what) in [
            ("--lora", "adapter"),
            ("--rope-scaling", "the model's file"),
            ("--mmproj-url", "--mmproj"),
            ("--grammar", "in requests"),
            ("--ssl-key-file", "docs/deploy.md"),
        ] {
            let refused = read_line(&["serve", "fox", flag, "x"]).err().unwrap();
            assert!(refused.contains(flag) && refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn a_default_value_is_no_request() {
        let line =
            ours(&["serve", "-t", "-1", "--rope-freq-base", "0", "--embd-normalize=2", "--pooling", "rank"]);
        assert_eq!((line.args, line.notes.len()), (vec!["serve".into()], 0));
        assert_eq!(ours(&["serve", "-t", "1"]).args, ["serve", "-t", "1"]);
    }

    #[test]
    fn flags_of_a_command_are_its_own() {
        assert_eq!(ours(&["bench", "-r", "3"]).args, ["bench", "-r", "3"]);
        assert!(read_line(&["serve", "-r", "3"]).is_err());
        assert_eq!(ours(&["run", "--logit-bias", "5=1"]).args, ["run", "--logit-bias", "5=1"]);
    }

    #[test]
    fn the_table_is_consistent() {
        let commands = crate::commands::command();
        let serve = flags(commands.find_subcommand("serve").unwrap());
        let run = flags(commands.find_subcommand("run").unwrap());
        let mut seen = BTreeSet::new();
        for (all, _, meaning) in FLAGS {
            for flag in all.split(' ') {
                assert!(flag.starts_with('-') && seen.insert(flag), "{flag}");
                assert!(!serve.contains(flag), "{flag} is a flag of serve: its row has no effect");
            }
            if let Meaning::Here(ours) = meaning {
                let ours = ours.split('=').next().unwrap();
                assert!(serve.contains(ours) || run.contains(ours), "{all}: {ours}");
            }
        }
    }
}
