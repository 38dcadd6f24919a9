"""Vercel's AI SDK, with an agent of a few lines on it."""

from pathlib import Path

from harness import call
from programs.base import Program


class AiSdk(Program):
    key, name, version, api = "ai-sdk", "AI SDK (`ai`)", "7.0.173", "OpenAI chat"
    packages = ["@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"]
    aliases = ["small"]
    second_model = "small"
    without = {"agent": "has none"}
    provider = "compatible"

    def install(self, installed):
        self.folder = installed.npm(self.key, [f"ai@{self.version}", *self.packages])
        return self.folder

    def write(self, name, content):
        return call("write", path=name, content=content)

    def edit(self, name, old, new):
        return call("edit", path=name, before=old, after=new)

    def shell(self, command):
        return call("shell", command=command)

    def ask(self, prompt, resume=False, model=None):
        history = self.place.home / "history.json"
        if not resume:
            history.unlink(missing_ok=True)
        script = Path(__file__).with_suffix(".mjs")
        return self.place.run(
            ["node", script, self.place.url, model or "local", history, prompt],
            {"AI_SDK": str(self.folder.parent), "PROVIDER": self.provider},
        )


class AiSdkResponses(AiSdk):
    """Its provider for OpenAI, which refers to items of earlier answers instead of sending them."""

    key, api = "ai-sdk-responses", "OpenAI responses"
    packages = ["@ai-sdk/openai@4.0.118", "zod@4.6.7"]
    provider = "openai"
