"""The programs that are run, each in a file of its own."""

from programs.ai_sdk import AiSdk, AiSdkResponses
from programs.aider import Aider
from programs.claude_code import ClaudeCode
from programs.codex import Codex, CodexOss
from programs.copilot import Copilot, CopilotResponses
from programs.gemini_cli import GeminiCli
from programs.goose import Goose
from programs.kilo import Kilo
from programs.llm_tool import Llm
from programs.opencode import OpenCode
from programs.pi import Pi
from programs.qwen_code import QwenCode

PROGRAMS = [
    ClaudeCode,
    Codex,
    CodexOss,
    OpenCode,
    Kilo,
    QwenCode,
    GeminiCli,
    Copilot,
    CopilotResponses,
    Pi,
    Goose,
    Aider,
    Llm,
    AiSdk,
    AiSdkResponses,
]
