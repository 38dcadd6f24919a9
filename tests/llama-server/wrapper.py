#!/usr/bin/env python3
"""What llama-server's tests start as llama-server: `octet serve` with the built-in model in place of theirs. Called by their utils.py."""

import os
import sys

# Flags that name a model, which is the built-in one here.
MODEL = {"--hf-repo", "--hf-file", "--model", "--model-url", "--mmproj-url", "--model-draft"}
OFFLINE = {"--offline", "--no-mmproj"}
# Flags that `octet serve` does not have under these names.
SPELLINGS = {"--cors-origins": "--cors-origin", "--chat-template-file": "--chat-template"}
WITHOUT_EFFECT = {
    "--no-jinja", "--slots", "--no-slots", "--metrics", "--embedding", "--reranking", "--kv-unified", "--swa-full", "--cont-batching", "--no-ui",
    "--no-cache-idle-slots",
}
WITHOUT_EFFECT_WITH_VALUE = {"--cache-ram", "--tags", "--media-path", "--reasoning"}


def translated(args):
    """The arguments for Octet. It answers to the names that it is given, and llama-server to any: `*`. The built-in model reasons unless
    it is told not to; theirs cannot."""
    out = [] if "--reasoning" in args else ["--chat-template-kwargs", '{"enable_thinking": false}']
    args = iter(args)
    for arg in args:
        if arg in MODEL | WITHOUT_EFFECT_WITH_VALUE:
            next(args)
        elif arg == "--alias":
            out += [arg, f"{next(args)},*"]
        elif arg not in OFFLINE | WITHOUT_EFFECT:
            out.append(SPELLINGS.get(arg, arg))
    return out


os.execv(os.environ["OCTET"], ["octet", "serve", "fox", *translated(sys.argv[1:])])
