"""OpenCode, over OpenAI's chat completions by the AI SDK."""

import json

from harness import call
from programs.base import Program


class OpenCode(Program):
    key, name, version, api = "opencode", "OpenCode", "1.18.33", "OpenAI chat"
    aliases = ["small"]
    second_model = "octet/small"
    image_expect = "Here was an image"
    program, settings = "opencode", ".config/opencode/opencode.json"

    def install(self, installed):
        return installed.npm(self.key, [f"opencode-ai@{self.version}"], ["opencode-ai/postinstall.mjs"])

    def setup(self):
        model = {
            "limit": {"context": 131072, "output": 16384},
            "modalities": {"input": ["text", "image"], "output": ["text"]},
        }
        models = {name: {"name": name, **model} for name in ("local", "small")}
        config = {
            "provider": {
                "octet": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": f"{self.place.url}/v1"},
                    "models": models,
                }
            },
            "model": "octet/local",
            "small_model": "octet/small",
            "autoupdate": False,
            "share": "disabled",
        }
        self.place.write(self.settings, json.dumps(config))

    def write(self, name, content):
        return call("write", filePath=self.path(name), content=content)

    def edit(self, name, old, new):
        return call("edit", filePath=self.path(name), oldString=old, newString=new)

    def shell(self, command):
        return call("bash", command=command, description="Run a command")

    def agent(self, prompt):
        return call("task", description="Do a part", prompt=prompt, subagent_type="general")

    def image(self, name):
        return call("read", filePath=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        more = ["--continue"] if resume else []
        more += ["--model", model] if model else []
        return self.place.run([self.program, "run", "--auto", *more, prompt], self.environment())

    def environment(self):
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
