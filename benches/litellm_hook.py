#!/usr/bin/env python3
"""Runs LiteLLM's own callback file as a hook of `octet serve` (docs/callbacks.md): its `async_pre_call_hook` sees requests, its
`async_post_call_success_hook` answers of `/chat/completions`.

    pip install 'litellm[proxy]'
    python3 benches/litellm_hook.py my_callbacks.proxy_handler_instance --port 9000

`my_callbacks.py` is looked for in the current folder, as LiteLLM's proxy does. In octet.yaml:

    hooks:
      - {url: "http://127.0.0.1:9000", on: request}
      - {url: "http://127.0.0.1:9000", on: response}
"""

import argparse
import asyncio
import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Kinds of calls, as LiteLLM names them for its hooks.
KINDS = {"/embeddings": "embeddings", "/completions": "text_completion", "/messages": "anthropic_messages", "/responses": "aresponses"}


def kind_of(path):
    """LiteLLM's name for the endpoint."""
    if path.endswith("/chat/completions"):
        return "completion"
    return next((kind for end, kind in KINDS.items() if path.endswith(end)), "completion")


async def on_request(handler, asked):
    """What `async_pre_call_hook` makes of a request: a text refuses it, a mapping replaces it."""
    changed = await handler.async_pre_call_hook(key_of(asked), None, asked["body"], kind_of(asked["path"]))
    if isinstance(changed, str):
        return {"refuse": changed}
    # Most hooks change the request in place, and return it or nothing.
    return {"body": changed if isinstance(changed, dict) else asked["body"]}


async def on_response(handler, asked):
    """What `async_post_call_success_hook` makes of an answer, which it may change in place or replace."""
    if kind_of(asked["path"]) != "completion":
        return {}
    from litellm import ModelResponse

    answer = ModelResponse(**asked["body"])
    changed = await handler.async_post_call_success_hook(asked.get("request") or {}, key_of(asked), answer)
    changed = changed if isinstance(changed, ModelResponse) else answer
    return {"body": changed.model_dump(mode="json", exclude_none=True)}


def key_of(asked):
    """The key, as LiteLLM's hooks expect it."""
    try:
        from litellm.proxy._types import UserAPIKeyAuth
    except ImportError:
        return None
    return UserAPIKeyAuth(key_alias=asked.get("key"))


def answer(handler, asked):
    """The verdict about a request or an answer. LiteLLM's hooks refuse by an exception."""
    see = on_response if asked["on"] == "response" else on_request
    try:
        return asyncio.run(see(handler, asked))
    except Exception as e:  # noqa: BLE001
        return {"refuse": str(getattr(e, "detail", None) or getattr(e, "message", None) or e)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("handler", help="module and name of the instance, as in litellm_settings.callbacks")
    parser.add_argument("--port", type=int, default=9000)
    args = parser.parse_args()
    sys.path.insert(0, ".")
    module, _, name = args.handler.rpartition(".")
    handler = getattr(importlib.import_module(module), name)

    class Hook(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(answer(handler, asked)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Requests are in Octet's log."""

    server = ThreadingHTTPServer(("127.0.0.1", args.port), Hook)
    print(f"listening at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
