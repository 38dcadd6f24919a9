"""Calls tools of models whose templates have syntaxes of their own, with OpenAI's and Anthropic's libraries. Run by clients.rs."""

import json
import sys

import anthropic
import openai

URL, MODELS = sys.argv[1], sys.argv[2:]
SCHEMA = {
    "type": "object",
    "properties": {"room": {"type": "string", "enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
    "required": ["room", "on"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "set_light", "description": "Turns a light on or off", "parameters": SCHEMA}}


def check(arguments):
    assert arguments["room"] in ("kitchen", "hall") and isinstance(arguments["on"], bool), arguments


def streamed(chat, model):
    """A call that comes in pieces, and the turn after it."""
    messages = [{"role": "user", "content": "Light!"}]
    asked = {"model": model, "messages": messages, "tools": [TOOL], "max_tokens": 300, "parallel_tool_calls": False, "reasoning_effort": "none"}
    ids, name, pieces, finish = [], "", [], None
    for chunk in chat.create(**asked, tool_choice="required", stream=True):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            ids += [call.id] if call.id else []
            name += call.function.name or ""
            pieces += [call.function.arguments] if call.function.arguments else []
    assert (len(ids), name, finish) == (1, "set_light", "tool_calls"), (model, ids, name, finish)
    arguments = "".join(pieces)
    check(json.loads(arguments))
    call = {"id": ids[0], "type": "function", "function": {"name": name, "arguments": arguments}}
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": ids[0], "content": "done"}]
    assert chat.create(**asked | {"max_tokens": 8}, tool_choice="none").choices[0].finish_reason
    named = {"type": "function", "function": {"name": "set_light"}}
    again = chat.create(**asked, tool_choice=named).choices[0].message.tool_calls
    assert [c.function.name for c in again] == ["set_light"]
    check(json.loads(again[0].function.arguments))
    return len(pieces)


def messages(client, model):
    tool = {"name": "set_light", "description": "Turns a light on or off", "input_schema": SCHEMA}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(model=model, max_tokens=300, messages=[{"role": "user", "content": "Light!"}], tools=[tool], tool_choice=choice, thinking={"type": "disabled"}) as stream:
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use", (model, answer)
    check([block for block in answer.content if block.type == "tool_use"][0].input)


chat = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0).chat.completions
client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
for model in MODELS:
    pieces = streamed(chat, model)
    messages(client, model)
    # Where the syntax has arguments as JSON they come as they are written.
    assert pieces > 1 or model in ("GLM", "MiniMax M3", "Muse Glimmer"), (model, pieces)
