//! Runs the built command on synthetic models in a temporary folder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The result of a command.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Fails the test if the command failed.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Fails the test unless the command exited with `code` and wrote each of `words` to standard error.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no '{word}' in: {}", self.stderr);
        }
        self
    }
}

/// A folder that is deleted after the test, with a model in it.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    /// An empty folder.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A folder with `model.gguf`, a tiny model of random weights.
    pub fn with_model(architecture: &str, quant: &str) -> Self {
        let place = Self::new();
        let model = octet_synth::tiny(architecture, quant.parse().unwrap()).unwrap();
        octet_synth::write(&model, &place.path("model.gguf"), false, &mut |_, _| {}).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// A folder with such a model, which is also in the hub's cache under `hf:me/tiny-GGUF:Q8_0`.
    pub fn with_cached_model(architecture: &str, quant: &str) -> Self {
        let place = Self::with_model(architecture, quant);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let entry = place.path("hub/models--me--tiny-GGUF");
        let snapshot = entry.join("snapshots").join(commit);
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(entry.join("refs")).unwrap();
        std::fs::write(entry.join("refs/main"), commit).unwrap();
        std::fs::copy(place.path("model.gguf"), snapshot.join("tiny-Q8_0.gguf")).unwrap();
        place
    }

    /// The file of [`Self::with_cached_model`] in the cache.
    pub fn cached(&self) -> PathBuf {
        let snapshots = self.path("hub/models--me--tiny-GGUF/snapshots");
        snapshots.join("0123456789abcdef0123456789abcdef01234567/tiny-Q8_0.gguf")
    }

    /// Runs `octet` in the folder, with an environment of its own and no standard input.
    pub fn octet(&self, args: &[&str]) -> Ran {
        self.octet_with(args, "", &[])
    }

    /// The same with standard input and some variables.
    pub fn octet_with(&self, args: &[&str], stdin: impl AsRef<[u8]>, variables: &[(&str, &str)]) -> Ran {
        self.run(self.command(args).envs(variables.iter().copied()), stdin)
    }

    /// `octet` in the folder, with an environment of its own.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_octet"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        command.env("HF_HUB_CACHE", self.path("hub")).env("HF_HUB_OFFLINE", "1").env("HOME", self.dir.path());
        command
    }

    /// Runs it to its end.
    pub fn run(&self, command: &mut Command, stdin: impl AsRef<[u8]>) -> Ran {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read it may have exited already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_ref());
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        Ran {
            code: status.code().unwrap(),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }
}

pub fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}
