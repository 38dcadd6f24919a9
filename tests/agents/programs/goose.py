"""Goose, over OpenAI's chat completions."""

from harness import call
from programs.base import Program


class Goose(Program):
    key, name, version, api = "goose", "Goose", "0.20.1", "OpenAI chat"
    aliases = ["small"]
    second_model = "small"
    splits_calls = True

    def install(self, installed):
        return installed.npm(self.key, [f"@aaif/goose@{self.version}"])

    def write(self, name, content):
        return call("write", path=self.path(name), content=content)

    def edit(self, name, old, new):
        return call("edit", path=self.path(name), before=old, after=new)

    def shell(self, command):
        return call("shell", command=command)

    def ask(self, prompt, resume=False, model=None):
        env = {
            "GOOSE_PROVIDER": "openai", "OPENAI_HOST": self.place.url, "OPENAI_API_KEY": "none", "GOOSE_MODEL": model or "local",
            "GOOSE_MODE": "auto", "GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false",
        }
        more = ["--resume"] if resume else []
        return self.place.run(["goose", "run", *more, "--text", prompt], env)
