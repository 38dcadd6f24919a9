//! Real chat templates from packages of PyPI, rendered by jinja2 as in transformers. None of the templates is in this repository.

#[allow(dead_code)]
#[path = "../../../serve/tests/common/python.rs"]
mod python;

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Renders templates as transformers does.
pub struct Renderer {
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Renderer {
    fn new(python: &Path) -> Self {
        let mut command = Command::new(python);
        command.args(["-c", include_str!("render.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python can be run");
        let pipes = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, pipes: RefCell::new(pipes) }
    }

    /// A template's text; `None` if it rejects the messages.
    pub fn render(
        &self,
        template: &Path,
        messages: &[Value],
        tools: Value,
        variables: Value,
    ) -> Option<String> {
        let line =
            json!({"template": template, "messages": messages, "tools": tools, "variables": variables});
        let mut pipes = self.pipes.borrow_mut();
        writeln!(pipes.0, "{line}").expect("python runs");
        let mut answer = String::new();
        pipes.1.read_line(&mut answer).expect("python runs");
        let answer: Value = serde_json::from_str(&answer).expect("a line of JSON");
        answer["text"].as_str().map(str::to_string)
    }
}

impl Drop for Renderer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folders of trl and axolotl, which have the templates of the families that they train.
const FOLDERS: &str = "import importlib.util as u
for name, below in (('trl', 'chat_templates'), ('axolotl', 'utils/chat_templates/templates')):
    print(u.find_spec(name).submodule_search_locations[0] + '/' + below)";

/// The source distribution with llama.cpp's templates.
const LLAMA: &str = "llama-cpp-python==0.3.36";

/// Unpacks the templates of a source distribution into its folder.
const UNPACK: &str = "import pathlib, sys, tarfile
folder = pathlib.Path(sys.argv[1])
for archive in folder.glob('*.tar.gz'):
    with tarfile.open(archive) as files:
        for file in files:
            if '/models/templates/' in file.name and file.name.endswith('.jinja'):
                (folder / pathlib.PurePosixPath(file.name).name).write_bytes(files.extractfile(file).read())
    archive.unlink()";

/// llama.cpp's templates, fetched once: 77 MB.
fn llama() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(LLAMA);
    let done = folder.join("fetched");
    // Several tests may want them at the same time.
    let turn = std::fs::File::create(folder.with_extension("lock")).expect("a file can be written");
    turn.lock().expect("a file can be locked");
    if !done.exists() {
        let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
        // Of others, such as the tools that build it, packages are built already.
        let source = ["--no-binary", "llama-cpp-python", LLAMA, "--dest"];
        let python = python::python(python::PIP, &[])?;
        python::run(Command::new(&python).args(pip).args(source).arg(&folder));
        python::run(Command::new(python).args(["-c", UNPACK]).arg(&folder));
        std::fs::write(done, "").expect("a file can be written");
    }
    Some(folder)
}

/// All templates, or those of `OCTET_TEST_TEMPLATES`; `None` without the network.
pub fn templates() -> Option<(Renderer, Vec<PathBuf>)> {
    let packages = ["jinja2==3.1.6", "trl==1.16.0", "axolotl==0.19.0", "--no-deps", "MarkupSafe"];
    let python = python::python("templates", &packages)?;
    let folders: Vec<PathBuf> = match std::env::var_os("OCTET_TEST_TEMPLATES") {
        Some(folders) => std::env::split_paths(&folders).collect(),
        None => {
            let output = Command::new(&python).args(["-c", FOLDERS]).output().expect("python can be run");
            let own = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect::<Vec<_>>();
            own.into_iter().chain(llama()).collect()
        }
    };
    let mut out: Vec<PathBuf> = folders
        .iter()
        .flat_map(|f| std::fs::read_dir(f).expect("a folder of templates"))
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "jinja"))
        .collect();
    out.sort();
    Some((Renderer::new(&python), out))
}
