"""Aider, over OpenAI's chat completions. It has no tools: the model writes changes as blocks of text."""

from harness import answer, task
from programs.base import Program


def block(name, old, new):
    """A change as Aider wants it written."""
    fence = "`" * 3
    return f"{name}\n{fence}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n{fence}"


class Aider(Program):
    key, name, version, api = "aider", "Aider", "0.86.2", "OpenAI chat"
    aliases = ["small"]
    second_model = "openai/small"
    edits_as_text = True
    without = {"parallel": "has no tools", "agent": "has none", "image": "has no tools"}

    def install(self, installed):
        return installed.venv(self.key, f"aider-chat=={self.version}")

    def script(self):
        return [
            task("TASK-TOOLS", answer("EDIT-DONE", block("notes.txt", "", "beta\n")), tools=False),
            task("TASK-RESUME", answer("RESUME-DONE", history="EDIT-DONE"), tools=False),
            task("TASK-MODEL", answer("MODEL-DONE"), tools=False),
        ]

    def ask(self, prompt, resume=False, model=None):
        env = {"OPENAI_API_BASE": f"{self.place.url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        quiet = ["--analytics-disable", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"]
        plain = ["--yes-always", "--no-git", "--no-pretty", "--no-detect-urls", "--edit-format", "diff"]
        more = ["--restore-chat-history"] if resume else []
        return self.place.run(["aider", "--model", model or "openai/local", *quiet, *plain, *more, "--message", prompt], env)
