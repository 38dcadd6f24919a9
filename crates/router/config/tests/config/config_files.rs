//! Other files that a configuration names: only regular ones of a sane size are read, and nothing makes the reader wait.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use octet_config::*;

const MODEL: &str = "model_list:\n- {model_name: a, litellm_params: {model: ollama/a}}\n";

/// A pipe, a socket, a device, a folder and a large file under names of their own.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::File::create(path("large")).unwrap().set_len(8 << 20).unwrap();
    std::fs::write(path("bytes"), [0xff, 0xfe]).unwrap();
    dir
}

/// The first thing that is wrong with a file of this text.
#[track_caller]
fn refused(dir: &Path, text: &str) -> String {
    let began = Instant::now();
    let said = Config::parse(&dir.join("octet.yaml").display().to_string(), text, &Disk(|_: &str| None));
    assert!(began.elapsed() < Duration::from_secs(60), "{text}");
    said.expect_err(text).to_string().lines().next().unwrap().to_string()
}

const SPECIAL: [(&str, &str); 6] = [
    ("pipe", "it is a pipe, not a regular file"),
    ("socket", "it is a socket, not a regular file"),
    ("device", "it is a device, not a regular file"),
    ("folder", "it is a folder, not a regular file"),
    ("large", "it is larger than "),
    ("bytes", "it is not UTF-8"),
];

#[test]
fn files_that_are_not_regular_are_refused_with_their_place() {
    let dir = place();
    for (name, why) in SPECIAL {
        for (text, at) in [
            (format!("{MODEL}include: [{name}]\n"), ":3:11: include: "),
            (
                format!(
                    "model_list:\n- {{model_name: a, litellm_params: {{model: groq/x, api_key: 'file:{name}'}}}}\n"
                ),
                ":2:60: ",
            ),
            (format!("{MODEL}general_settings: {{master_key: 'file:{name}'}}\n"), ":3:32: "),
            (format!("{MODEL}server: {{api_key_file: {name}}}\n"), ":3:24: server.api_key_file: "),
        ] {
            let said = refused(dir.path(), &text);
            assert!(said.contains(at) && said.contains(&format!("'{name}'")) && said.contains(why), "{said}");
        }
        let said = Config::load(&dir.path().join(name), &Disk(|_: &str| None)).unwrap_err().to_string();
        assert!(said.contains("the file cannot be read") && said.contains(why), "{said}");
    }
}

#[test]
fn keys_from_files_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("two"), "sk-one\nsk-two\n").unwrap();
    std::fs::write(dir.path().join("none"), "# nobody\n\n").unwrap();
    std::fs::write(dir.path().join("odd"), "sk-one\nsk-\u{1b}two\n").unwrap();
    let said = refused(dir.path(), &format!("{MODEL}general_settings: {{master_key: 'file:two'}}\n"));
    assert!(
        said.contains("the key contains a line break or another control character") && !said.contains("sk-"),
        "{said}"
    );
    let said = refused(dir.path(), &format!("{MODEL}server: {{api_key_file: none}}\n"));
    assert!(said.contains("contains no key"), "{said}");
    let said = refused(dir.path(), &format!("{MODEL}server: {{api_key_file: odd}}\n"));
    assert!(said.contains("line 2 of 'odd' contains a line break") && !said.contains("sk-"), "{said}");
    let text = format!("{MODEL}server: {{api_key_file: two}}\n");
    let config =
        Config::parse(&dir.path().join("octet.yaml").display().to_string(), &text, &Disk(|_: &str| None));
    let keys: Vec<String> = config.unwrap().server.api_keys.iter().map(|k| k.expose().to_string()).collect();
    assert_eq!(keys, ["sk-one", "sk-two"]);
}
