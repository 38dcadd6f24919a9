"""Gemini CLI, over Gemini's API."""

import json

from harness import answer, call
from programs.base import Program


class GeminiCli(Program):
    key, name, version, api = "gemini-cli", "Gemini CLI", "0.61.0", "Gemini"
    aliases = ["gemini-*"]
    second_model = "gemini-2.5-flash"
    image_expect = "Here was an image"

    def install(self, installed):
        return installed.npm(self.key, [f"@google/gemini-cli@{self.version}"])

    def setup(self):
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False},
        }
        self.place.write(".gemini/settings.json", json.dumps(settings))

    def write(self, name, content):
        return call("write_file", file_path=self.path(name), content=content)

    def edit(self, name, old, new):
        return call("replace", file_path=self.path(name), old_string=old, new_string=new, instruction="Change it")

    def shell(self, command):
        # It refuses commands with substitutions.
        return call("run_shell_command", command=command.replace("$((60 + 4))", "64"), description="Run a command")

    def agent(self, prompt):
        return call("invoke_agent", agent_name="generalist", prompt=prompt)

    def subtask_done(self):
        return answer(call("complete_task", result={"response": "SUB-DONE"}), expect="sub-64")

    def image(self, name):
        return call("read_file", file_path=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        env = {"GOOGLE_GEMINI_BASE_URL": self.place.url, "GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
        more = ["--resume", "latest"] if resume else []
        more += ["--model", model] if model else []
        return self.place.run(["gemini", "--yolo", "--skip-trust", *more, "-p", prompt], env)
