"""Claude Code, over Anthropic's API."""

from harness import call
from programs.base import Program


class ClaudeCode(Program):
    key, name, version, api = "claude-code", "Claude Code", "2.1.332", "Anthropic messages"
    aliases = ["claude-*"]
    second_model = "haiku"
    # It differs between sessions: with it no prompt could go on from an earlier session's.
    unwanted = "x-anthropic-billing-header"
    image_expect = "Here was an image"

    def install(self, installed):
        package = "@anthropic-ai/claude-code"
        return installed.npm(self.key, [f"{package}@{self.version}"], [f"{package}/install.cjs"])

    def write(self, name, content):
        return call("Write", file_path=self.path(name), content=content)

    def edit(self, name, old, new):
        return call("Edit", file_path=self.path(name), old_string=old, new_string=new)

    def shell(self, command):
        return call("Bash", command=command, description="Run a command")

    def agent(self, prompt):
        return call("Agent", description="Do a part", prompt=prompt, subagent_type="general-purpose", run_in_background=False)

    def image(self, name):
        return call("Read", file_path=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        env = {
            "ANTHROPIC_BASE_URL": self.place.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "local",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        more = ["--continue"] if resume else []
        more += ["--model", model] if model else []
        tools = ["--allowedTools", "Bash", "Edit", "Write", "Read", "Agent"]
        return self.place.run(["claude", "-p", prompt, *more, *tools], env)
