"""Kilo CLI, a relative of OpenCode, over OpenAI's chat completions by the AI SDK."""

from programs.opencode import OpenCode


class Kilo(OpenCode):
    key, name, version, api = "kilo", "Kilo CLI", "7.7.9", "OpenAI chat"
    program, settings = "kilo", ".config/kilo/kilo.json"

    def install(self, installed):
        # The binary itself: the package around it fetches one from elsewhere.
        folder = installed.npm(self.key, [f"@kilocode/cli-linux-x64@{self.version}"])
        return folder.parent / "@kilocode/cli-linux-x64/bin"

    def environment(self):
        return {"KILO_DISABLE_AUTOUPDATE": "1", "KILO_DISABLE_MODELS_FETCH": "1"}
