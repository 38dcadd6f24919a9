"""How often an OpenAI-compatible server's `fox` answers right: `python ask.py http://HOST:PORT/v1`. Greedy, new questions of the training's kinds."""

import json
import random
import re
import sys
import urllib.request

import tasks
import tools

EACH = 40


def ask(url, messages, offered=None):
    body = {"model": "fox", "messages": messages, "temperature": 0, "max_tokens": 300, **({"tools": offered} if offered else {})}
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]


def turns(url, r, make, same):
    right = 0
    for _ in range(EACH):
        question, _, answer = make(r)
        right += same(question, ask(url, [{"role": "user", "content": question}])["content"] or "", answer)
    return right / EACH


def number(_, said, answer):
    return re.findall(r"\d+", said)[-1:] == re.findall(r"\d+", answer)[-1:]


def calls(url, r):
    """Shares of conversations with a call where one is due, with the right tool, and with the right arguments too."""
    due = called = named = exact = 0
    while due < EACH:
        made = tools.tools(r)
        at = next(i for i, m in enumerate(made["messages"]) if m["role"] == "assistant")
        if "tool_calls" not in made["messages"][at]:
            continue
        due += 1
        want = made["messages"][at]["tool_calls"][0]["function"]
        got = (ask(url, made["messages"][:at], made["tools"]).get("tool_calls") or [{}])[0].get("function")
        called += got is not None
        if got and got["name"] == want["name"]:
            named += 1
            exact += json.loads(got["arguments"]) == want["arguments"]
    return called / due, named / due, exact / due


def main():
    url, r = sys.argv[1], random.Random(99)
    exact = lambda _, said, answer: said.strip() == answer  # noqa: E731
    animal = lambda question, said, _: any(f" {a} " in said[:200] for a in re.findall(r"\w+", question) if a in tasks.ANIMALS) or not any(a in question for a in tasks.ANIMALS)  # noqa: E731
    for name, make, same in (("story about the animal asked for", tasks.story_turn, animal), ("question", tasks.question_turn, exact), ("arithmetic", tasks.arithmetic_turn, number),
                             ("JSON", tasks.json_turn, exact), ("code", tasks.code_turn, exact), ("text", tasks.text_turn, exact)):
        print(f"{name}: {turns(url, r, make, same):.0%}", flush=True)
    called, named, whole = calls(url, r)
    print(f"tools: {called:.0%} call, {named:.0%} the right tool, {whole:.0%} with the right arguments")


if __name__ == "__main__":
    main()
