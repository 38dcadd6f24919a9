"""Sends images by four client libraries: through a router to each provider (gateway_clients.rs: gateway_images.py URL NAME...), or to a model
with a tower (clients.rs: gateway_images.py URL --seeing PNG PNG NAME)."""

import base64
import pathlib
import sys
import urllib.request

import anthropic
import ollama
import openai
from google import genai
from google.genai import types

URL, NAMES = sys.argv[1], sys.argv[2:]
SEES = NAMES[0] == "--seeing"
if SEES:
    ONE, TWO = (pathlib.Path(path).read_bytes() for path in NAMES[1:3])
    NAMES = NAMES[3:]
else:
    # Nothing decodes them.
    ONE = b"\x89PNG\r\n\x1a\n"
    TWO = ONE + b"\0"
TEXT = "It is 9 °C in Köln."


def b64(data):
    return base64.b64encode(data).decode()


def url(data):
    return f"data:image/png;base64,{b64(data)}"


def chat(name):
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    image = lambda data: {"type": "image_url", "image_url": {"url": url(data), "detail": "low"}}
    call = {"id": "call_12345", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = client.chat.completions.create(model=name, messages=[
        {"role": "user", "content": [{"type": "text", "text": "What are these?"}, image(ONE), image(TWO)]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_12345", "content": [{"type": "text", "text": "a shot"}, image(ONE)]},
    ])
    return answer.choices[0].message.content


def responses(name):
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    image = lambda data: {"type": "input_image", "image_url": url(data), "detail": "auto"}
    answer = client.responses.create(model=name, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "What are these?"}, image(ONE), image(TWO)]},
        {"type": "function_call", "call_id": "call_12345", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_12345", "output": [{"type": "input_text", "text": "a shot"}, image(ONE)]},
    ])
    return answer.output_text


def messages(name):
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    image = lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(data)}}
    answer = client.messages.create(model=name, max_tokens=1000, messages=[
        {"role": "user", "content": [{"type": "text", "text": "What are these?"}, image(ONE), image(TWO)]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a shot"}, image(ONE)]}]},
    ])
    return "".join(b.text for b in answer.content if b.type == "text")


def native(name):
    client = ollama.Client(host=URL)
    answer = client.chat(name, [
        {"role": "user", "content": "What are these?", "images": [ONE, b64(TWO)]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "tool_name": "look", "content": "a shot", "images": [ONE]},
    ])
    return answer.message.content


def gemini(name):
    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=URL))
    image = lambda data: types.Part.from_bytes(data=data, mime_type="image/png")
    shot = types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(mime_type="image/png", data=ONE))
    answer = client.models.generate_content(model=name, contents=[
        types.Content(role="user", parts=[types.Part(text="What are these?"), image(ONE), image(TWO)]),
        types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(id="c1", name="look", args={}))]),
        types.Content(role="user", parts=[types.Part(function_response=types.FunctionResponse(
            id="c1", name="look", response={"output": "a shot"}, parts=[shot]))]),
    ])
    return answer.text


for name in NAMES:
    for ask in (chat, responses, messages, native, gemini):
        text = ask(name)
        # A model with random weights says anything.
        assert SEES or text == TEXT, f"{ask.__name__} to {name}: {text!r}"

if SEES:
    metrics = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    encoded = [line for line in metrics.splitlines() if line.startswith("octet:encoded_images{")]
    assert len(encoded) == 1 and float(encoded[0].split()[-1]) == 2, f"each image is encoded once: {encoded}"
