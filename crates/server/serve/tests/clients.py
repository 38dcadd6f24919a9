"""Asks a running server through a real client library. Run by clients.rs: clients.py LIBRARY URL."""

import json
import re
import sys

LIBRARY, URL = sys.argv[1], sys.argv[2]
MODEL = "tiny"
HELLO = [{"role": "user", "content": "Hello"}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["room", "on"],
    "properties": {"room": {"type": "string", "enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
}
FUNCTION = {"name": "set_light", "description": "Switches a light.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


def check_arguments(arguments):
    assert arguments["room"] in ("kitchen", "hall") and isinstance(arguments["on"], bool), arguments


def openai():
    """Chats and responses, whole and streamed; tools, also in the syntaxes of eleven families; custom tools; deprecated functions; text files; structured output; stored responses and their items; plain completions with log-probabilities; embeddings; models; errors."""
    import openai
    from pydantic import BaseModel

    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    assert MODEL in [m.id for m in client.models.list()]
    chat = client.chat.completions
    plain = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 12, "extra_body": NO_THINKING}
    whole = chat.create(**plain)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    pieces = list(chat.create(**plain, stream=True, stream_options={"include_usage": True}))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert pieces[-1].usage.completion_tokens == 12

    called = chat.create(**plain | {"max_tokens": 300}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    call = called.choices[0].message.tool_calls[0]
    assert call.function.name == "set_light"
    check_arguments(json.loads(call.function.arguments))
    streamed = ""
    for piece in chat.create(**plain | {"max_tokens": 300}, tools=[TOOL], tool_choice="required", stream=True, parallel_tool_calls=False):
        for part in piece.choices[0].delta.tool_calls or [] if piece.choices else []:
            streamed += part.function.arguments or ""
    check_arguments(json.loads(streamed))

    pattern = "[a-c]{3}[0-9]{2}"
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": pattern}}
    custom = {
        "tools": [{"type": "custom", "custom": {"name": "code", "description": "Takes a code.", "format": form}}],
        "tool_choice": {"type": "custom", "custom": {"name": "code"}},
    }
    message = chat.create(**plain | {"max_tokens": 300} | custom).choices[0].message
    call = message.tool_calls[0]
    assert call.type == "custom" and re.fullmatch(pattern, call.custom.input), call
    answered = {"role": "tool", "tool_call_id": call.id, "content": "taken"}
    turns = HELLO + [message.model_dump(exclude_none=True), answered]
    assert chat.create(**plain | {"messages": turns, "tools": custom["tools"]}).usage.completion_tokens
    streamed = ""
    for piece in chat.create(**plain | {"max_tokens": 300} | custom, stream=True):
        for part in piece.choices[0].delta.tool_calls or [] if piece.choices else []:
            streamed += part.model_dump()["custom"]["input"]
    assert streamed == call.custom.input, streamed

    # Clients of 2023 read `function_call`.
    legacy = plain | {"max_tokens": 300, "functions": [FUNCTION], "function_call": {"name": "set_light"}}
    message = chat.create(**legacy).choices[0].message
    assert message.function_call.name == "set_light" and not message.tool_calls
    check_arguments(json.loads(message.function_call.arguments))
    streamed = [p.choices[0].delta.function_call for p in chat.create(**legacy, stream=True) if p.choices]
    assert "".join(p.arguments or "" for p in streamed if p) == message.function_call.arguments
    answered = {"role": "function", "name": "set_light", "content": "done"}
    turns = HELLO + [message.model_dump(exclude_none=True), answered]
    assert chat.create(**plain | {"messages": turns, "functions": [FUNCTION]}).usage.completion_tokens

    notes = {"filename": "notes.txt", "file_data": "data:text/plain;base64,YWJj"}
    part = {"type": "file", "file": notes}
    longer = chat.create(**plain | {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Hello"}]}]})
    assert longer.usage.prompt_tokens > whole.usage.prompt_tokens

    class Light(BaseModel):
        on: bool

    parsed = chat.parse(**plain | {"max_tokens": 100}, response_format=Light)
    assert isinstance(parsed.choices[0].message.parsed.on, bool)

    asked = {"model": MODEL, "input": "Hello", "max_output_tokens": 12, "temperature": 0, "reasoning": {"effort": "none"}}
    response = client.responses.create(**asked)
    assert response.output_text
    assert client.responses.retrieve(response.id).output_text == response.output_text
    following = client.responses.create(**asked, previous_response_id=response.id)
    assert following.usage.input_tokens > response.usage.input_tokens
    # Vercel's AI SDK refers to the items of earlier answers instead of sending them.
    turns = HELLO + [{"type": "item_reference", "id": item.id} for item in response.output] + HELLO
    referring = client.responses.create(**asked | {"input": turns})
    assert referring.usage.input_tokens > response.usage.input_tokens
    items = list(client.responses.input_items.list(referring.id, order="asc", limit=1))
    assert [i.content[0].text for i in items] == ["Hello", response.output_text, "Hello"], items
    assert client.responses.input_items.list(referring.id).data[0].id == items[-1].id
    read = client.responses.create(**asked | {"input": [{"role": "user", "content": [{"type": "input_file"} | notes]}]})
    assert read.usage.input_tokens > response.usage.input_tokens
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello", reasoning=asked["reasoning"])
    assert counted.input_tokens == response.usage.input_tokens
    form = {"type": "json_schema", "name": "light", "schema": PARAMETERS, "strict": True}
    with client.responses.stream(**asked | {"max_output_tokens": 100}, text={"format": form}) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
    check_arguments(json.loads(text))

    scored = client.completions.create(model=MODEL, prompt="abc", echo=True, logprobs=1, max_tokens=1)
    assert scored.choices[0].text.startswith("abc") and scored.choices[0].logprobs.token_logprobs[0] is None
    assert len(client.embeddings.create(model=MODEL, input="abc").data[0].embedding) == 256
    try:
        chat.create(**plain | {"model": "other"})
        raise AssertionError("there is no such model")
    except openai.NotFoundError as e:
        assert "tiny" in e.message
    try:
        chat.create(**plain | {"messages": [{"role": "user", "content": "long " * 2000}]})
        raise AssertionError("it does not fit")
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded"


def anthropic():
    """Messages, whole and streamed; tools and their results, also in the syntaxes of eleven families; thinking; counting tokens; errors."""
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    # The library has no temperature any more; the dialect has.
    asked = {"model": MODEL, "messages": HELLO, "extra_body": {"temperature": 0}}
    plain = asked | {"max_tokens": 12, "thinking": {"type": "disabled"}}
    whole = client.messages.create(**plain)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12
    with client.messages.stream(**plain) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text
    tool = {"name": "set_light", "input_schema": PARAMETERS}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    called = client.messages.create(**plain | {"max_tokens": 300}, tools=[tool], tool_choice=choice)
    block = called.content[-1]
    assert called.stop_reason == "tool_use" and block.type == "tool_use"
    check_arguments(block.input)
    answer = {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
    turns = HELLO + [{"role": "assistant", "content": called.content}, {"role": "user", "content": [answer]}]
    client.messages.create(**plain | {"messages": turns}, tools=[tool])
    thinking = client.messages.create(**asked, max_tokens=40)
    assert thinking.content[0].type == "thinking"
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, thinking={"type": "disabled"})
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    try:
        client.messages.create(**plain | {"model": "other"})
        raise AssertionError("there is no such model")
    except anthropic.NotFoundError as e:
        assert "tiny" in str(e)


def ollama():
    """Chats, whole and streamed; tools; structured output; plain completions; thinking; embeddings; models; errors."""
    import ollama

    client = ollama.Client(host=URL)
    assert [m.model for m in client.list().models] == [MODEL]
    options = {"temperature": 0, "num_predict": 12}
    plain = {"model": MODEL, "messages": HELLO, "options": options, "think": False}
    whole = client.chat(**plain)
    assert whole.done_reason == "length" and whole.eval_count == 12
    pieces = list(client.chat(**plain, stream=True))
    assert "".join(p.message.content for p in pieces) == whole.message.content
    client.chat(**plain, tools=[TOOL])
    schema = {"type": "object", "additionalProperties": False, "required": ["on"], "properties": {"on": {"type": "boolean"}}}
    formatted = client.chat(**plain | {"options": options | {"num_predict": 100}}, format=schema)
    assert isinstance(json.loads(formatted.message.content)["on"], bool)
    generated = client.generate(MODEL, "Hello", options=options, think=False)
    assert generated.response == whole.message.content
    again = client.generate(MODEL, "Go on", context=generated.context, options=options, think=False)
    history = HELLO + [{"role": "assistant", "content": generated.response}, {"role": "user", "content": "Go on"}]
    assert again.response == client.chat(**plain | {"messages": history}).message.content
    *_, last = client.generate(MODEL, "Hello", options=options, think=False, stream=True)
    assert list(last.context) == list(generated.context)
    thought = client.chat(**plain | {"think": True})
    assert thought.message.thinking
    assert len(client.embed(MODEL, ["one", "two"]).embeddings) == 2
    assert client.show(MODEL).details.family == "qwen35moe"
    assert [m.model for m in client.ps().models] == [MODEL]
    try:
        client.chat(**plain | {"model": "other"})
        raise AssertionError("there is no such model")
    except ollama.ResponseError as e:
        assert e.status_code == 404


def google_genai():
    """Contents, whole, streamed and in chats; function calls and their results; structured output; thinking; log-probabilities; counting tokens; embeddings; models; errors."""
    from google import genai
    from google.genai import errors, types
    from pydantic import BaseModel

    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=URL))
    models = client.models
    assert [m.name for m in models.list()] == ["models/" + MODEL]
    assert "generateContent" in models.get(model=MODEL).supported_actions
    off = types.ThinkingConfig(thinking_budget=0)

    def config(**more):
        return types.GenerateContentConfig(**{"temperature": 0, "max_output_tokens": 12, "thinking_config": off} | more)

    safe = types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")
    plain = {"model": MODEL, "contents": "Hello"}
    whole = models.generate_content(**plain, config=config(system_instruction="Be brief.", safety_settings=[safe]))
    assert whole.candidates[0].finish_reason == "MAX_TOKENS" and whole.usage_metadata.candidates_token_count == 12, whole
    pieces = list(models.generate_content_stream(**plain, config=config(system_instruction="Be brief.")))
    assert "".join(p.text or "" for p in pieces) == whole.text, (pieces, whole)
    assert pieces[-1].candidates[0].finish_reason == "MAX_TOKENS" and pieces[-1].usage_metadata.candidates_token_count == 12

    tool = types.Tool(function_declarations=[types.FunctionDeclaration(**FUNCTION | {"parameters": None}, parameters_json_schema=PARAMETERS)])
    must = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["set_light"]))
    asked = config(tools=[tool], tool_config=must, max_output_tokens=300)
    called = models.generate_content(**plain, config=asked)
    assert called.candidates[0].finish_reason == "STOP"
    call = called.function_calls[0]
    assert call.name == "set_light"
    check_arguments(call.args)
    streamed = [c for p in models.generate_content_stream(**plain, config=asked) for c in p.function_calls or []]
    check_arguments(streamed[0].args)
    result = types.Part.from_function_response(name="set_light", response={"output": "done"})
    turns = [types.Content(role="user", parts=[types.Part(text="Hello")]), called.candidates[0].content, types.Content(role="user", parts=[result])]
    assert models.generate_content(model=MODEL, contents=turns, config=config(tools=[tool])).usage_metadata.prompt_token_count > 20

    class Light(BaseModel):
        on: bool

    formed = config(response_mime_type="application/json", response_schema=Light, max_output_tokens=100)
    said = models.generate_content(**plain, config=formed)
    assert said.parsed and isinstance(said.parsed.on, bool), said
    formed = config(response_mime_type="application/json", response_json_schema=PARAMETERS, max_output_tokens=100)
    check_arguments(json.loads(models.generate_content(**plain, config=formed).text))
    words = config(response_mime_type="text/x.enum", response_schema={"type": "STRING", "enum": ["red", "green"]}, max_output_tokens=50)
    assert models.generate_content(**plain, config=words).text in ("red", "green")

    shown = types.ThinkingConfig(include_thoughts=True)
    thought = models.generate_content(**plain, config=config(thinking_config=shown))
    assert thought.candidates[0].content.parts[0].thought and thought.usage_metadata.thoughts_token_count
    hidden = models.generate_content(**plain, config=config(thinking_config=None))
    assert not any(p.thought for p in hidden.candidates[0].content.parts or [])
    scored = models.generate_content(**plain, config=config(response_logprobs=True, logprobs=2, candidate_count=2))
    assert len(scored.candidates) == 2 and scored.candidates[0].avg_logprobs <= 0
    assert len(scored.candidates[1].logprobs_result.top_candidates[0].candidates) == 2

    chat = client.chats.create(model=MODEL, config=config())
    first = "".join(p.text or "" for p in chat.send_message_stream("Hello"))
    chat.send_message("And again")
    assert first and len(chat.get_history(curated=True)) >= 4, chat.get_history()
    counted = models.count_tokens(model=MODEL, contents="Hello")
    assert counted.total_tokens == models.generate_content(**plain, config=config(thinking_config=None)).usage_metadata.prompt_token_count
    vectors = models.embed_content(model=MODEL, contents=["one", "two"]).embeddings
    assert [len(v.values) for v in vectors] == [256, 256]
    for wrong, code, status, text in (
        (plain | {"model": "other"}, 404, "NOT_FOUND", "tiny"),
        (plain | {"contents": "long " * 2000}, 400, "INVALID_ARGUMENT", "context"),
    ):
        for ask in (models.generate_content, lambda **a: list(models.generate_content_stream(**a))):
            try:
                ask(**wrong, config=config())
                raise AssertionError("that cannot be answered")
            except errors.ClientError as e:
                assert (e.code, e.status) == (code, status) and text in e.message, e


def mistralai():
    """Chats, whole and streamed; tools in whole answers (in streams it refuses calls in pieces); structured output; embeddings; models; errors."""
    from mistralai.client import Mistral
    from mistralai.client.errors import SDKError

    client = Mistral(api_key="none", server_url=URL)
    plain = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 12, "reasoning_effort": "none"}
    whole = client.chat.complete(**plain)
    assert whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
    events = list(client.chat.stream(**plain))
    text = "".join(e.data.choices[0].delta.content or "" for e in events)
    assert text == whole.choices[0].message.content, (text, whole)
    called = client.chat.complete(**plain | {"max_tokens": 400}, tools=[TOOL], tool_choice="any", parallel_tool_calls=False)
    message = called.choices[0].message
    call = message.tool_calls[0]
    check_arguments(json.loads(call.function.arguments))
    answered = {"role": "tool", "name": "set_light", "tool_call_id": call.id, "content": "done"}
    assert client.chat.complete(**plain | {"messages": HELLO + [message, answered]}, tools=[TOOL]).usage
    form = {"type": "json_schema", "json_schema": {"name": "light", "schema": PARAMETERS, "strict": True}}
    formed = client.chat.complete(**plain | {"max_tokens": 400}, response_format=form).choices[0].message.content
    text = formed if isinstance(formed, str) else "".join(c.text for c in formed if c.type == "text")
    check_arguments(json.loads(text))
    vectors = client.embeddings.create(model=MODEL, inputs=["a", "b"])
    assert vectors.id and [len(d.embedding) for d in vectors.data] == [256, 256]
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL] and models[0].capabilities.completion_chat
    assert client.models.retrieve(model_id=MODEL).id == MODEL
    try:
        client.chat.complete(**plain | {"model": "other"})
        raise AssertionError("there is no such model")
    except SDKError as e:
        assert "tiny" in str(e)


def huggingface_hub():
    """Chats, whole and streamed, with and without a model's name; tools."""
    from huggingface_hub import InferenceClient

    named, unnamed = InferenceClient(base_url=URL + "/v1", api_key="none"), InferenceClient(URL)
    plain = {"messages": HELLO, "temperature": 0.0, "max_tokens": 12, "extra_body": NO_THINKING}
    whole = named.chat.completions.create(model=MODEL, **plain)
    assert whole.usage.completion_tokens == 12
    text = "".join(p.choices[0].delta.content or "" for p in unnamed.chat_completion(**plain, stream=True) if p.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    called = unnamed.chat_completion(**plain | {"max_tokens": 400}, tools=[TOOL], tool_choice="required")
    arguments = called.choices[0].message.tool_calls[0].function.arguments
    check_arguments(json.loads(arguments) if isinstance(arguments, str) else arguments)


def litellm():
    """Chats over OpenAI's API, whole and streamed; tools; chats over Anthropic's and Ollama's APIs."""
    import litellm

    litellm.suppress_debug_info = True
    plain = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "num_retries": 0}
    openai = plain | {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": "none", "extra_body": NO_THINKING}
    whole = litellm.completion(**openai)
    assert whole.choices[0].finish_reason == "length"
    text = "".join(p.choices[0].delta.content or "" for p in litellm.completion(**openai, stream=True))
    assert text == whole.choices[0].message.content
    called = litellm.completion(**openai | {"max_tokens": 300}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    check_arguments(json.loads(called.choices[0].message.tool_calls[0].function.arguments))
    claude = plain | {"model": "anthropic/" + MODEL, "api_base": URL, "api_key": "none"}
    assert litellm.completion(**claude).usage.completion_tokens == 12
    chat = plain | {"model": "ollama_chat/" + MODEL, "api_base": URL}
    assert litellm.completion(**chat, think=False).choices[0].message.content


def langchain():
    """Chats, whole and streamed; tools; structured output; embeddings."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel
    from typing import Literal

    model = ChatOpenAI(
        base_url=URL + "/v1", api_key="none", model=MODEL, temperature=0, max_tokens=100, max_retries=0, extra_body=NO_THINKING
    )
    whole = model.invoke("Hello")
    assert whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(p.content for p in model.stream("Hello")) == whole.content

    class Light(BaseModel):
        room: Literal["kitchen", "hall"]
        on: bool

    light = model.with_structured_output(Light, method="json_schema").invoke("Light!")
    assert light.room in ("kitchen", "hall")

    @tool
    def set_light(room: Literal["kitchen", "hall"], on: bool) -> str:
        """Switches a light."""
        return "done"

    long = model.bind(max_tokens=400)
    called = long.bind_tools([set_light], tool_choice="set_light").invoke("Light!") if hasattr(long, "bind_tools") else None
    called = called or model.bind_tools([set_light], tool_choice="set_light", parallel_tool_calls=False).invoke("Light!")
    check_arguments(called.tool_calls[0]["args"])
    vectors = OpenAIEmbeddings(base_url=URL + "/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False)
    assert len(vectors.embed_query("one")) == 256


def httpx():
    """HTTP/2 with prior knowledge: chats, whole and streamed, concurrently on one connection; chunked bodies; errors."""
    import asyncio

    import httpx

    asked = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 12} | NO_THINKING

    async def run():
        async with httpx.AsyncClient(base_url=URL, http1=False, http2=True, timeout=600) as client:
            whole = await client.post("/v1/chat/completions", json=asked)
            assert whole.http_version == "HTTP/2" and whole.json()["usage"]["completion_tokens"] == 12, whole
            text = whole.json()["choices"][0]["message"]["content"]

            async def streamed():
                said = ""
                async with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as response:
                    assert response.http_version == "HTTP/2"
                    async for line in response.aiter_lines():
                        if line.startswith("data: {"):
                            said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                return said

            said = await asyncio.gather(*[streamed() for _ in range(12)])
            assert said == [text] * 12, said

            async def pieces():
                body = json.dumps(asked | {"messages": [{"role": "user", "content": "x" * 300}]}).encode()
                for at in range(0, len(body), 50):
                    yield body[at : at + 50]

            assert (await client.post("/v1/chat/completions", content=pieces())).status_code == 200
            wrong = await client.post("/v1/chat/completions", content=b"{")
            assert wrong.status_code == 400 and "connection" not in wrong.headers, wrong.headers
            assert (await client.get("/health")).status_code == 200

    asyncio.run(run())


def schemathesis():
    """Sends valid and invalid requests to everything in the API description: no answer may be a server error, and each must match the description."""
    import os
    import pathlib
    import subprocess

    from openapi_spec_validator import validate_url

    validate_url(URL + "/openapi.json")
    checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance", "response_schema_conformance"]
    command = [str(pathlib.Path(sys.executable).with_name("schemathesis")), "--no-color", "run", URL + "/openapi.json", "--url", URL]
    command += ["--checks", ",".join(checks), "--phases", "examples,coverage,fuzzing", "--max-examples", "6", "--seed", "1"]
    command += ["--generation-database", "none", "--suppress-health-check", "all", "--request-timeout", "600"]
    # Without a cache of responses these answer 503, as LiteLLM's do.
    command += ["--exclude-path-regex", "^/cache/"]
    here = pathlib.Path(__file__).parent
    ran = subprocess.run(command, cwd=here, env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks"})
    assert ran.returncode == 0, "see above"


def guesses():
    """Guesses of a server that makes some in each step: in answers as llama-server's clients find them, and in metrics as Prometheus' own parser reads them."""
    import urllib.request

    import openai
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    def counted():
        with urllib.request.urlopen(URL + "/metrics") as answer:
            families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
        samples = {}
        for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"):
            family = families["vllm:spec_decode_num_" + name]
            assert family.type == "counter", family
            samples[name] = [s for s in family.samples if s.labels["model_name"] == MODEL]
        assert [s.labels["position"] for s in samples["accepted_tokens_per_pos"]] == [str(i) for i in range(len(samples["accepted_tokens_per_pos"]))]
        return {name: sum(s.value for s in found) for name, found in samples.items()}

    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    drafted = accepted = 0
    for text in ("one two one two one two", "again and again and again"):
        plain = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40, "extra_body": NO_THINKING | {"ignore_eos": True}}
        timings = client.chat.completions.create(**plain).model_extra["timings"]
        drafted, accepted = drafted + timings["draft_n"], accepted + timings["draft_n_accepted"]
        last = list(client.chat.completions.create(**plain, stream=True))[-1]
        drafted, accepted = drafted + last.model_extra["timings"]["draft_n"], accepted + last.model_extra["timings"]["draft_n_accepted"]
    assert 0 <= accepted <= drafted and drafted > 0, (drafted, accepted)
    found = counted()
    assert (found["draft_tokens"], found["accepted_tokens"]) == (drafted, accepted), (found, drafted, accepted)
    assert found["accepted_tokens_per_pos"] == accepted and 0 < found["drafts"] <= drafted, found


CLIENTS = {
    "guesses": guesses, "openai": openai, "anthropic": anthropic, "ollama": ollama, "google-genai": google_genai, "litellm": litellm,
    "langchain-openai": langchain, "mistralai": mistralai, "huggingface-hub": huggingface_hub, "httpx": httpx, "schemathesis": schemathesis,
}
CLIENTS[LIBRARY]()
print("fine")
