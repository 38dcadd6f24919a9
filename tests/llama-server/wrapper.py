#!/usr/bin/env python3
"""What llama-server's tests start as llama-server: `octet serve` with the built-in model in place of theirs. Called by their utils.py."""

import os
import sys

# Flags that name a model, which is the built-in one here.
MODEL = {"--hf-repo", "--hf-file", "--model", "--model-url", "--mmproj-url", "--model-draft"}
OFFLINE = "--offline"


def translated(args):
    """The arguments for Octet. It answers to the names that it is given, and llama-server to any: `*`. The built-in model reasons unless
    it is told not to; theirs cannot."""
    out = [] if "--reasoning" in args else ["--chat-template-kwargs", '{"enable_thinking": false}']
    args = iter(args)
    for arg in args:
        if arg in MODEL:
            next(args)
        elif arg == "--alias":
            out += [arg, f"{next(args)},*"]
        elif arg != OFFLINE:
            out.append(arg)
    return out


os.execv(os.environ["OCTET"], ["octet", "serve", "fox", *translated(sys.argv[1:])])
