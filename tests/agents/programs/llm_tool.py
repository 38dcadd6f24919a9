"""Simon Willison's `llm`, over OpenAI's chat completions, with tools that are Python functions."""

from harness import call
from programs.base import Program

MODELS = """
- model_id: local
  model_name: local
  api_base: {url}/v1
  api_key_name: octet
  supports_tools: true
- model_id: small
  model_name: small
  api_base: {url}/v1
  api_key_name: octet
  supports_tools: true
"""

FUNCTIONS = '''
import pathlib, subprocess

def write(path: str, content: str) -> str:
    """Writes a file."""
    pathlib.Path(path).write_text(content)
    return "written"

def edit(path: str, old: str, new: str) -> str:
    """Replaces a text in a file."""
    file = pathlib.Path(path)
    file.write_text(file.read_text().replace(old, new))
    return "edited"

def shell(command: str) -> str:
    """Runs a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
'''


class Llm(Program):
    key, name, version, api = "llm", "llm", "0.36", "OpenAI chat"
    aliases = ["small"]
    second_model = "small"
    without = {"agent": "has none"}

    def install(self, installed):
        return installed.venv(self.key, f"llm=={self.version}")

    def setup(self):
        self.place.write(".config/io.datasette.llm/extra-openai-models.yaml", MODELS.format(url=self.place.url))
        self.place.write("functions.py", FUNCTIONS)

    def write(self, name, content):
        return call("write", path=name, content=content)

    def edit(self, name, old, new):
        return call("edit", path=name, old=old, new=new)

    def shell(self, command):
        return call("shell", command=command)

    def ask(self, prompt, resume=False, model=None):
        more = ["--continue"] if resume else []
        functions = str(self.place.home / "functions.py")
        env = {"LLM_USER_PATH": str(self.place.home / ".config/io.datasette.llm"), "OCTET_KEY": "none"}
        command = ["llm", "prompt", "--chain-limit", "0", "-m", model or "local", "--key", "none", "--functions", functions, *more, prompt]
        return self.place.run(command, env)
