"""Codex, over OpenAI's Responses API."""

from harness import answer, call
from programs.base import Program

CONFIG = """
model = "local"
model_provider = "octet"
model_context_window = 131072
check_for_update_on_startup = false

[model_providers.octet]
name = "octet"
base_url = "{url}/v1"
wire_api = "responses"

[analytics]
enabled = false
"""


class Codex(Program):
    key, name, version, api = "codex", "Codex", "0.169.0", "OpenAI responses"
    aliases = ["other"]
    second_model = "other"
    image_expect = "Here was an image"

    def install(self, installed):
        return installed.npm("codex", [f"@openai/codex@{self.version}"])

    def setup(self):
        self.place.write(".codex/config.toml", CONFIG.format(url=self.place.url))

    def write(self, name, content):
        return self.shell(f"printf '%s' '{content}' > {name}")

    def edit(self, name, old, new):
        return self.shell(f"sed -i s/{old}/{new}/ {name}")

    def shell(self, command):
        return call("exec_command", cmd=command)

    def agent(self, prompt):
        return call("multi_agent_v1__spawn_agent", message=prompt)

    @property
    def after_agent(self):
        return [answer(call("multi_agent_v1__wait_agent", targets=["$COPY"]), copy='"agent_id":"')]

    def image(self, name):
        return call("view_image", path=self.path(name))

    def ask(self, prompt, resume=False, model=None):
        command = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
        command += ["--model", model] if model else []
        command += ["resume", "--last"] if resume else []
        return self.place.run([*command, prompt])


class CodexOss(Codex):
    """Codex as its users start it with Ollama: no settings but the address."""

    key, api = "codex-oss", "Ollama, OpenAI responses"

    def setup(self):
        self.place.write(".codex/config.toml", "check_for_update_on_startup = false\n[analytics]\nenabled = false\n")

    def ask(self, prompt, resume=False, model=None):
        command = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
        command += ["--oss", "--local-provider", "ollama", "--model", model or "local"]
        command += ["resume", "--last"] if resume else []
        return self.place.run([*command, prompt], {"CODEX_OSS_BASE_URL": f"{self.place.url}/v1"})
