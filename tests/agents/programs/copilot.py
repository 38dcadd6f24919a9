"""GitHub Copilot CLI with a model provider of one's own, over OpenAI's chat completions and Responses."""

from harness import call
from programs.base import Program


class Copilot(Program):
    key, name, version, api = "copilot", "Copilot CLI", "1.0.102", "OpenAI chat"
    aliases = ["small"]
    second_model = "small"
    wire = "completions"

    def install(self, installed):
        return installed.npm("copilot", [f"@github/copilot@{self.version}"])

    def write(self, name, content):
        return call("create", path=self.path(name), file_text=content)

    def edit(self, name, old, new):
        return call("edit", path=self.path(name), old_str=old, new_str=new)

    def shell(self, command):
        return call("bash", command=command, description="Run a command", mode="sync")

    def agent(self, prompt):
        return call("task", agent_type="general-purpose", description="Do a part", name="part", prompt=prompt, mode="sync")

    def image(self, name):
        return call("view", path=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        env = {
            "COPILOT_PROVIDER_BASE_URL": f"{self.place.url}/v1",
            "COPILOT_PROVIDER_WIRE_API": self.wire,
            "COPILOT_MODEL": model or "local",
            "COPILOT_OFFLINE": "true",
        }
        more = ["--continue"] if resume else []
        return self.place.run(["copilot", "--allow-all-tools", "--allow-all-paths", "--silent", *more, "-p", prompt], env)


class CopilotResponses(Copilot):
    key, name, api = "copilot-responses", "Copilot CLI", "OpenAI responses"
    wire = "responses"
