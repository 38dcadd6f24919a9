"""Qwen Code, over OpenAI's chat completions."""

import json

from harness import call
from programs.base import Program


class QwenCode(Program):
    key, name, version, api = "qwen-code", "Qwen Code", "0.24.4", "OpenAI chat"
    aliases = ["small"]
    second_model = "small"
    image_expect = "Here was an image"

    def install(self, installed):
        return installed.npm(self.key, [f"@qwen-code/qwen-code@{self.version}"])

    def setup(self):
        settings = {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False},
            "model": {"generationConfig": {"modalities": {"image": True}}},
            "security": {"auth": {"selectedType": "openai"}},
        }
        self.place.write(".qwen/settings.json", json.dumps(settings))

    def write(self, name, content):
        return call("write_file", file_path=self.path(name), content=content)

    def edit(self, name, old, new):
        return call("edit", file_path=self.path(name), old_string=old, new_string=new)

    def shell(self, command):
        return call("run_shell_command", command=command, is_background=False)

    def agent(self, prompt):
        return call("agent", description="Do a part", prompt=prompt, subagent_type="general-purpose", run_in_background=False)

    def image(self, name):
        return call("read_file", file_path=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        env = {"OPENAI_BASE_URL": f"{self.place.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "local"}
        more = ["--continue"] if resume else []
        more += ["--model", model] if model else []
        return self.place.run(["qwen", "--yolo", *more, "-p", prompt], env)
