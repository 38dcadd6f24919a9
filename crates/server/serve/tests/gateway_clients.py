"""Holds one conversation with each provider behind a router, through four client libraries. Run by gateway_clients.rs:
gateway_clients.py URL NAME..."""

import json
import sys
import traceback
from dataclasses import dataclass, field

import anthropic
import ollama
import openai
from google import genai
from google.genai import errors, types

URL, NAMES = sys.argv[1], sys.argv[2:]
SYSTEM, USER, RESULT = "Be brief.", "Weather in Köln?", "9 °C"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


@dataclass
class Meaning:
    """What an answer means, whoever gives it and whoever hears it."""

    thoughts: str = ""
    text: str = ""
    calls: list = field(default_factory=list)
    end: str | None = None
    tokens: tuple | None = None


CALL = Meaning("Let me think.", 'Looking "up" 🙂.', [("weather", {"city": "Köln"})], "calls", (10, 5))
LAST = Meaning("Nine it is.", "It is 9 °C in Köln.", [], "stop", (20, 7))
SHORT = Meaning("", "It", [], "length", (10, 1))
# What is heard of an answer that breaks off.
HEARD = Meaning("Nine it is.", "It is 9 °C")


class OpenAI:
    """Speaks as the users of the library `openai` do."""

    ends = {"tool_calls": "calls", "stop": "stop", "length": "length"}

    def __init__(self, name, stream):
        self.name, self.stream = name, stream
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
        self.turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]

    def ask(self, out, short=False):
        more = {"max_completion_tokens": 1} if short else {"reasoning_effort": "medium"}
        if self.stream:
            more |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = self.client.chat.completions.create(model=self.name, messages=self.turns, tools=[TOOL], **more)
        message = self.pieces(answer, out) if self.stream else self.whole(answer, out)
        self.turns.append(message)
        self.ids = [c["id"] if self.stream else c.id for c in (message["tool_calls"] if self.stream else message.tool_calls or [])]

    def whole(self, answer, out):
        [choice] = answer.choices
        message = choice.message
        out.thoughts, out.text = getattr(message, "reasoning_content", None) or "", message.content or ""
        out.calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]
        out.end = self.ends[choice.finish_reason]
        out.tokens = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        assert answer.usage.total_tokens == sum(out.tokens), answer.usage
        return message

    def pieces(self, answer, out):
        calls = []
        for piece in answer:
            if piece.usage:
                assert out.tokens is None, "counted twice"
                out.tokens = (piece.usage.prompt_tokens, piece.usage.completion_tokens)
            for choice in piece.choices:
                assert choice.index == 0 and out.end is None, "more after the end"
                delta = choice.delta
                out.thoughts += getattr(delta, "reasoning_content", None) or ""
                out.text += delta.content or ""
                for call in delta.tool_calls or []:
                    if call.index == len(calls):
                        calls.append({"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}})
                    calls[call.index]["function"]["arguments"] += call.function.arguments or ""
                if choice.finish_reason:
                    out.end = self.ends[choice.finish_reason]
        out.calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        return {"role": "assistant", "content": out.text, "tool_calls": calls}

    def result(self):
        [call] = self.ids
        self.turns.append({"role": "tool", "tool_call_id": call, "content": RESULT})

    def check_limited(self, e):
        assert type(e) is openai.RateLimitError and e.status_code == 429, repr(e)
        assert e.response.headers["retry-after"] == "7", e.response.headers
        assert "Slow down" in e.message, e.message

    def check_broken(self, e):
        if self.stream:
            # The library has no class of its own for an error within a stream.
            assert type(e) is openai.APIError and e.message and e.message != "An error occurred during streaming", repr(e)
        else:
            assert type(e) is openai.InternalServerError and e.status_code == 502, repr(e)
            assert e.body["message"], e.body


class Anthropic:
    """Speaks as the users of the library `anthropic` do."""

    ends = {"tool_use": "calls", "end_turn": "stop", "max_tokens": "length"}
    tool = {"name": "weather", "description": "Tells it.", "input_schema": PARAMETERS}

    def __init__(self, name, stream):
        self.name, self.stream = name, stream
        self.client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        self.turns = [{"role": "user", "content": USER}]

    def ask(self, out, short=False):
        asked = {"model": self.name, "system": SYSTEM, "messages": self.turns, "tools": [self.tool], "max_tokens": 4000}
        asked |= {"max_tokens": 1} if short else {"thinking": {"type": "enabled", "budget_tokens": 2000}}
        if self.stream:
            with self.client.messages.stream(**asked) as stream:
                for event in stream:
                    if event.type == "thinking":
                        out.thoughts += event.thinking
                    elif event.type == "text":
                        out.text += event.text
                # Where the stream is over, but was not ended, the library says nothing of it: no reason is there then.
                message = stream.get_final_message()
        else:
            message = self.client.messages.create(**asked)
        blocks = [b.type for b in message.content]
        order = [t for t in ("thinking", "text", "tool_use") if t in blocks]
        assert blocks == order, blocks
        thoughts = "".join(b.thinking for b in message.content if b.type == "thinking")
        text = "".join(b.text for b in message.content if b.type == "text")
        assert not self.stream or (thoughts, text) == (out.thoughts, out.text), "the pieces are the whole"
        out.thoughts, out.text = thoughts, text
        out.calls = [(b.name, b.input) for b in message.content if b.type == "tool_use"]
        out.end = self.ends[message.stop_reason] if message.stop_reason else None
        out.tokens = (message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0), message.usage.output_tokens)
        self.turns.append({"role": "assistant", "content": message.content})

    def result(self):
        [call] = [b.id for b in self.turns[-1]["content"] if b.type == "tool_use"]
        self.turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": RESULT}]})

    def check_limited(self, e):
        assert type(e) is anthropic.RateLimitError and e.status_code == 429, repr(e)
        assert e.response.headers["retry-after"] == "7", e.response.headers
        assert e.body["error"]["type"] == "rate_limit_error" and "Slow down" in e.body["error"]["message"], e.body

    def check_broken(self, e):
        # Within a stream the status was good, and the library goes by that.
        kind = anthropic.APIStatusError if self.stream else anthropic.InternalServerError
        assert type(e) is kind and e.body["error"]["type"] == "api_error" and e.body["error"]["message"], repr(e)


class Ollama:
    """Speaks as the users of the library `ollama` do."""

    def __init__(self, name, stream):
        self.name, self.stream = name, stream
        self.client = ollama.Client(host=URL)
        self.turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]

    def ask(self, out, short=False):
        more = {"options": {"num_predict": 1}} if short else {"think": True}
        answer = self.client.chat(self.name, self.turns, tools=[TOOL], stream=self.stream, **more)
        calls = []
        for piece in answer if self.stream else [answer]:
            assert out.end is None, "more after the end"
            message = piece.message
            out.thoughts += message.thinking or ""
            out.text += message.content or ""
            calls += message.tool_calls or []
            if piece.done:
                out.calls = [(c.function.name, dict(c.function.arguments)) for c in calls]
                # It has no word of its own for calls.
                out.end = "calls" if calls and piece.done_reason == "stop" else piece.done_reason
                out.tokens = (piece.prompt_eval_count, piece.eval_count)
        said = {"role": "assistant", "thinking": out.thoughts, "content": out.text, "tool_calls": calls}
        self.turns.append(said if self.stream else answer.message)

    def result(self):
        self.turns.append({"role": "tool", "tool_name": "weather", "content": RESULT})

    def check_limited(self, e):
        assert type(e) is ollama.ResponseError and e.status_code == 429 and "Slow down" in e.error, repr(e)

    def check_broken(self, e):
        assert type(e) is ollama.ResponseError and e.error, repr(e)
        # Within a stream it knows of no status.
        assert e.status_code == (-1 if self.stream else 502), e.status_code


class Gemini:
    """Speaks as the users of the library `google-genai` do."""

    ends = {"STOP": "stop", "MAX_TOKENS": "length"}
    function = types.FunctionDeclaration(name="weather", description="Tells it.", parameters_json_schema=PARAMETERS)

    def __init__(self, name, stream):
        self.name, self.stream = name, stream
        self.client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=URL))
        self.turns = [types.Content(role="user", parts=[types.Part(text=USER)])]

    def ask(self, out, short=False):
        more = {"max_output_tokens": 1} if short else {"thinking_config": types.ThinkingConfig(include_thoughts=True, thinking_budget=2000)}
        config = types.GenerateContentConfig(system_instruction=SYSTEM, tools=[types.Tool(function_declarations=[self.function])], **more)
        asked = {"model": self.name, "contents": self.turns, "config": config}
        models = self.client.models
        signature, calls = None, []
        for piece in models.generate_content_stream(**asked) if self.stream else [models.generate_content(**asked)]:
            assert out.end is None, "more after the end"
            for candidate in piece.candidates or []:
                for part in (candidate.content and candidate.content.parts) or []:
                    if part.thought:
                        out.thoughts += part.text
                        continue
                    out.text += part.text or ""
                    signature = (part.text and part.thought_signature) or signature
                    if part.function_call:
                        calls.append(part)
                if candidate.finish_reason:
                    out.calls = [(p.function_call.name, p.function_call.args) for p in calls]
                    # It has no word of its own for calls.
                    out.end = "calls" if calls else self.ends[candidate.finish_reason.value]
                    usage = piece.usage_metadata
                    out.tokens = (usage.prompt_token_count, usage.candidates_token_count + (usage.thoughts_token_count or 0))
        # As programs keep it: without thoughts, with what proves them.
        self.turns.append(types.Content(role="model", parts=[types.Part(text=out.text, thought_signature=signature), *calls]))

    def result(self):
        [call] = [p.function_call for p in self.turns[-1].parts if p.function_call]
        result = types.FunctionResponse(id=call.id, name=call.name, response={"output": RESULT})
        self.turns.append(types.Content(role="user", parts=[types.Part(function_response=result)]))

    def check_limited(self, e):
        assert type(e) is errors.ClientError and (e.code, e.status) == (429, "RESOURCE_EXHAUSTED"), repr(e)
        assert e.response.headers["retry-after"] == "7" and "Slow down" in e.message, repr(e)

    def check_broken(self, e):
        assert type(e) is errors.ServerError and e.code == 502 and e.message, repr(e)


def holds(client, name, stream):
    """A call, what its result leads to, and an answer that has to be short."""
    talk = client(name, stream)
    for expected, short in ((CALL, False), (LAST, False), (SHORT, True)):
        if short:
            talk = client(name, stream)
        out = Meaning()
        talk.ask(out, short)
        assert out == expected, f"\n  {out}\n  {expected}"
        if expected is CALL:
            talk.result()


def fails(client, name, stream, how):
    """An error is told, and as what it is; what was heard before stays, and is heard once."""
    talk = client(f"{name}-{how}", stream)
    out = Meaning()
    try:
        talk.ask(out)
    except Exception as e:
        if how == "limited":
            talk.check_limited(e)
            assert out == Meaning(), out
        else:
            talk.check_broken(e)
            assert out == (HEARD if stream else Meaning()), out
        return
    raise AssertionError(f"no error, but {out}")


wrong, cells = [], 0
for name in NAMES:
    for client in (OpenAI, Anthropic, Ollama, Gemini):
        for stream in (False, True):
            for how in (None, "limited", "broken", "ended"):
                cells += 1
                try:
                    fails(client, name, stream, how) if how else holds(client, name, stream)
                except Exception as e:
                    trace = "" if isinstance(e, AssertionError) else traceback.format_exc()
                    wrong.append(f"{client.__name__} to {name}, stream {stream}, {how or 'good'}: {e!r} {e} {trace}")
print("\n".join(wrong), f"{len(wrong)} of {cells} are wrong", sep="\n")
assert cells == 5 * 4 * 2 * 4 and not wrong
