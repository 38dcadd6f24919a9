"""Sends a server every field that a client library knows, each in a body of its own, with plausible and with neutral values.

Run by clients.rs: fields.py LIBRARY URL. The fields come from the types of the installed library, so that a new version brings new ones. A body may
be refused only for a reason that REFUSED names: the field changes what the answer means, and is not supported.
"""

import collections.abc
import concurrent.futures
import inspect
import json
import sys
import types
import typing
import urllib.error
import urllib.request

import typing_extensions

LIBRARY, URL = sys.argv[1], sys.argv[2]
MODEL = "tiny"
CLOSED = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": CLOSED}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# What may be refused, by the path of what is wrong without the places in lists: it changes what the answer means.
REFUSED = {
    "openai": {
        # Answers are text, and so is what the model reads now.
        "modalities", "messages[].content[].type", "messages[].content[].file.file_data", "messages[].content[]", "input[].content[]",
        # Files, conversations and prompts are not kept.
        "input[].content[].image_url", "input[].content[].file_data", "input[].output[].image_url", "input[].output[].file_data",
        "messages[].content[].file.file_id", "input[].content[].file_id", "input[].output[].file_id",
        "conversation", "prompt", "background", "input[].type", "input[].role", "input[].id",
        # The deprecated form of tools stands for tools, not beside them.
        "functions", "function_call", "tools[].type",
        "suffix", "best_of", "grammar",
    },
    "anthropic": {
        # Files are not kept.
        "messages[].content[].source.type", "messages[].content[].content[].source.type", "messages[].content[].source.content[].source.type",
        # This server calls no tools.
        "tools[].allowed_callers",
        # Conversations are not kept.
        "thread",
    },
    "ollama": {
        "suffix", "template", "context", "images[]", "width", "height", "options.vocab_only", "options.embedding_only",
        "options.mirostat", "options.tfs_z", "options.typical_p",
    },
}
# Values of fields whose types say too little.
VALUES = {
    "arguments": ["{}", ""],
    "call_id": ["1"],
    "content_type": ["text"],
    "data": ["AAAA"],
    "definition": ["start: \"x\""] if LIBRARY == "openai" else [{"name": "g", "input_schema": CLOSED}],
    "dimensions": [8],
    "best_of": [1, 2],
    "file_id": ["file_1"],
    "function_call": ["none", "auto", {"name": "f"}],
    "functions": [[{"name": "f"}], []],
    "file_data": ["data:application/pdf;base64,AAAA"],
    "file": [{"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}],
    "id": ["1"],
    "image_url": ["data:image/png;base64,iVBORw0KGgo=", {"url": "data:image/png;base64,iVBORw0KGgo="}],
    "input_schema": [CLOSED],
    "logit_bias": [{"1": 1}, {}],
    "images": [["AAAA"], []],
    "max_completion_tokens": [1],
    "max_output_tokens": [1],
    "max_tokens": [1],
    "media_type": ["image/png"],
    "metadata": [{"user_id": "u"}, {}],
    "model": [MODEL],
    "n": [1, 2],
    "name": ["f"],
    "num_ctx": [512],
    "num_predict": [1],
    "parameters": [CLOSED],
    "pattern": ["a"],
    "presence_penalty": [0.5, 0],
    "frequency_penalty": [0.5, 0],
    "repeat_penalty": [1.1, 1],
    "schema": [CLOSED],
    "seed": [1],
    "stop": ["x", ["x"], [], ""],
    "temperature": [0.5, 0],
    "tool_call_id": ["1"],
    "tool_use_id": ["1"],
    "top_k": [5, 0],
    "top_logprobs": [1, 0],
    "top_p": [0.5, 1],
    "url": ["https://example.com/x"],
    "stream": [False],
    "think": [True, False, "low"],
    "stream_options": [{"include_usage": True}, {"include_obfuscation": False}],
    "previous_response_id": [None],
    "budget_tokens": [16],
    "keep_alive": ["5m", 0, -1],
}
DEPTH_MAX = 4


def is_dict(kind):
    return isinstance(kind, type) and (typing.is_typeddict(kind) or typing_extensions.is_typeddict(kind))


def values(kind, name, depth=0):
    """Some values of a type: what says something first, then what says nothing."""
    if VALUES.get(name):
        return VALUES[name]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired, typing.Annotated):
        return values(args[0], name, depth)
    if origin in (typing.Literal, typing_extensions.Literal):
        return [args[0], args[-1]] if len(args) > 1 else [args[0]]
    if origin in (typing.Union, types.UnionType):
        out = []
        for arg in args:
            out += [v for v in values(arg, name, depth) if v not in out or v is False]
        return out
    if kind is type(None):
        return [None]
    if is_dict(kind):
        return [v for v in objects(kind, depth + 1)] if depth < DEPTH_MAX else []
    if inspect.isclass(kind) and hasattr(kind, "model_fields"):
        return [v for v in models(kind, depth + 1)] if depth < DEPTH_MAX else []
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence, tuple) or "Sequence" in str(origin):
        inner = values(args[0], "", depth) if args else []
        return [[v] for v in inner if v is not None] + [[]]
    if origin in (dict, collections.abc.Mapping) or kind is dict:
        return [{}]
    if kind is bool:
        return [True, False]
    if kind is int:
        return [1, 0]
    if kind is float:
        return [0.5, 0.0]
    if kind is str:
        return ["text"]
    if kind in (object, typing.Any):
        return [{}]
    return []


def fields(kind):
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    # Annotations that are strings do not tell the class what it requires.
    required = (typing.Required, typing_extensions.Required)
    return {name: (hint, typing.get_origin(hint) in required) for name, hint in hints.items()}


def objects(kind, depth=0):
    """The smallest object of a TypedDict, then one for each value of each field that it may have."""
    all = fields(kind)
    least = {}
    for name, (hint, required) in all.items():
        if required:
            found = [v for v in values(hint, name, depth) if v is not None]
            if not found:
                return
            least[name] = found[0]
    yield least
    for name, (hint, required) in all.items():
        for value in values(hint, name, depth)[1 if required else 0 :]:
            yield least | {name: value}


def models(kind, depth=0):
    """The same of a model of pydantic's."""
    least = {}
    for name, field in kind.model_fields.items():
        if field.is_required():
            found = [v for v in values(field.annotation, name, depth) if v is not None]
            if not found:
                return
            least[name] = found[0]
    yield least
    for name, field in kind.model_fields.items():
        for value in values(field.annotation, name, depth):
            if value is not None and least.get(name) != value:
                yield least | {name: value}


def members(union):
    """The TypedDicts of a union."""
    args = typing.get_args(union)
    if not args:
        return [union] if is_dict(union) else []
    return [m for arg in args for m in members(arg)]


def openai():
    from openai.types import completion_create_params, embedding_create_params
    from openai.types.chat import ChatCompletionMessageParam, completion_create_params as chat_params
    from openai.types.responses import ResponseInputItemParam, ToolParam, response_create_params

    def chat(more):
        return "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "tools": [TOOL]} | more

    def response(more):
        function = {"type": "function"} | TOOL["function"]
        return "/v1/responses", {"model": MODEL, "input": "Hello", "max_output_tokens": 1, "tools": [function]} | more

    for body in objects(chat_params.CompletionCreateParamsNonStreaming):
        body = dict(body) | ({"logprobs": True} if "top_logprobs" in body else {})
        body.pop("messages")
        if "max_completion_tokens" in body:
            yield "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]} | body
        elif body.get("tool_choice") is None or not isinstance(body["tool_choice"], dict):
            yield chat(body)
    for kind in members(ChatCompletionMessageParam):
        for message in objects(kind):
            before = [{"role": "assistant", "content": None, "tool_calls": [CALL]}] if message["role"] == "tool" else []
            if not isinstance(message.get("function_call"), str):
                yield chat({"messages": [{"role": "user", "content": "Hello"}, *before, message, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Go on"}]})
    for body in objects(completion_create_params.CompletionCreateParamsNonStreaming):
        yield "/v1/completions", {"max_tokens": 1} | body
    for body in objects(embedding_create_params.EmbeddingCreateParams):
        yield "/v1/embeddings", body
    for body in objects(response_create_params.ResponseCreateParamsNonStreaming):
        if not isinstance(body.get("tool_choice"), dict) and not isinstance(body.get("input"), list):
            yield response({name: value for name, value in body.items() if name != "tools"})
    for kind in members(ToolParam):
        for tool in objects(kind):
            yield response({"tools": [tool]})
    for kind in members(ResponseInputItemParam):
        for item in objects(kind):
            yield response({"tools": [], "input": [{"role": "user", "content": "Hello"}, item, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Go on"}]})


def anthropic():
    from anthropic.types import MessageParam, message_create_params
    from anthropic.types.beta import BetaMessageParam, message_create_params as beta_params

    def messages(more):
        return "/v1/messages", {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]} | more

    for params in (message_create_params, beta_params):
        for body in objects(params.MessageCreateParamsNonStreaming):
            body = {name: value for name, value in body.items() if name != "messages"}
            if not isinstance(body.get("tool_choice"), dict):
                yield messages(body)
    for kind in members(MessageParam) + members(BetaMessageParam):
        for message in objects(kind):
            content = message.get("content")
            kinds = {block["type"] for block in content} if isinstance(content, list) else {"text"}
            wrong = {"user": {"tool_use", "thinking", "redacted_thinking"}, "assistant": {"tool_result"}}.get(message["role"], set())
            if not kinds or kinds & wrong or "content" not in message:
                continue
            yield messages({"messages": [message, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Go on"}]})


def ollama():
    from ollama import _types

    hello = [{"role": "user", "content": "Hello"}]
    least = {"model": MODEL, "stream": False, "options": {"num_predict": 1}}
    for body in models(_types.ChatRequest):
        yield "/api/chat", least | body | {"messages": hello} | ({"tools": [TOOL]} if body.get("tools") else {})
    for message in models(_types.Message):
        role = {"images": "user", "tool_name": "tool"}.get(next((k for k in ("images", "tool_name") if message.get(k)), ""), "assistant")
        calls = {"tool_calls": [CALL]} if message.get("tool_calls") else {}
        yield "/api/chat", least | {"messages": [*hello, message | {"role": role} | calls, {"role": "assistant", "content": "So"}, *hello]}
    for body in models(_types.GenerateRequest):
        yield "/api/generate", least | {"prompt": "Hello"} | body
    for body in models(_types.EmbedRequest):
        yield "/api/embed", {"model": MODEL, "input": "Hello"} | body
    for body in models(_types.Options):
        yield "/api/chat", least | {"messages": hello, "options": {"num_predict": 1} | body}


def ask(path, body):
    """Sends a body; what is wrong with it, if something is."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
        return None
    except urllib.error.HTTPError as e:
        answer = json.loads(e.read())
        error = answer["error"]
        message = error if isinstance(error, str) else error["message"]
        assert e.code < 500, (e.code, message, path, body)
        param = None if isinstance(error, str) else error.get("param")
        # Two dialects' errors have the path in their text only.
        return param or message.split()[0].strip("'"), message


def without_places(path):
    return "".join(c for c in path if not c.isdigit()) if "[" in path else path


def is_empty(body):
    """Nothing is asked, which is refused for good."""
    return any(body.get(name, "text") in ([], [[]]) for name in ("input", "prompt"))


bodies = {json.dumps(body, sort_keys=True): body for body in globals()[LIBRARY]() if not is_empty(body[1])}.values()
refused, wrong = 0, []
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(lambda asked: ask(*asked), bodies))
for (path, body), why in zip(bodies, answers):
    if why is not None:
        refused += 1
        if without_places(why[0]) not in REFUSED[LIBRARY]:
            wrong.append(f"{path} {why[1]}\n    {json.dumps(body)[:300]}")
print(f"{LIBRARY}: {len(bodies)} bodies, {refused} refused, {len(wrong)} of them without a reason")
print("\n".join(wrong))
sys.exit(bool(wrong))
