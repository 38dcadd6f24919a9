"""pi, over OpenAI's chat completions."""

import json

from harness import call
from programs.base import Program


class Pi(Program):
    key, name, version, api = "pi", "pi", "1.3.0", "OpenAI chat"
    aliases = ["small"]
    second_model = "octet/small"
    image_expect = "Here was an image"
    without = {"agent": "has none"}

    def install(self, installed):
        return installed.npm(self.key, [f"@earendil-works/pi-coding-agent@{self.version}"])

    def setup(self):
        models = [{"id": name, "reasoning": True, "contextWindow": 131072, "input": ["text", "image"]} for name in ("local", "small")]
        octet = {"baseUrl": f"{self.place.url}/v1", "api": "openai-completions", "apiKey": "none", "models": models}
        self.place.write(".pi/agent/models.json", json.dumps({"providers": {"octet": octet}}))

    def write(self, name, content):
        return call("write", path=name, content=content)

    def edit(self, name, old, new):
        return call("edit", path=name, edits=[{"oldText": old, "newText": new}])

    def shell(self, command):
        return call("bash", command=command)

    def image(self, name):
        return call("read", path=name)

    def ask(self, prompt, resume=False, model=None):
        more = ["--continue"] if resume else []
        return self.place.run(["pi", "--offline", "--model", model or "octet/local", *more, "-p", prompt])
