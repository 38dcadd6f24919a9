"""Training text with tools: conversations in which the model calls one, reads its result and answers, or needs none."""

import json

from stories import ANIMALS, FOODS, NAMES
from tasks import CITIES, WORDS, arithmetic_turn, question_turn


def tool(name, description, **properties):
    """A function in OpenAI's form; a property is (type, description)."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in properties.items()}, "required": list(properties)}}}


def weather(r):
    city = r.choice(CITIES)
    sky, t = r.choice(["sunny", "cloudy", "rainy", "windy", "snowy"]), r.randrange(-5, 35)
    ask = r.choice([f"What is the weather in {city}?", f"How is the weather in {city}?", f"What's the weather like in {city} today?", f"Weather in {city}?", f"Is it warm in {city}?"])
    result = r.choice([{"city": city, "weather": sky, "temperature": t}, {"weather": sky, "temperature": t}])
    t_ = tool(r.choice(["get_weather", "get_current_weather", "weather"]), r.choice(["Get the weather of a city", "Get the current weather", "The weather in a city"]),
              **{r.choice(["city", "location"]): ("string", r.choice(["The city", "Name of the city"]))})
    return t_, ask, [city], json.dumps(result), f"In {city} it is {sky}, {t} degrees."


def clock(r):
    city, time = r.choice(CITIES), f"{r.randrange(24):02}:{r.randrange(60):02}"
    ask = r.choice([f"What time is it in {city}?", f"Tell me the time in {city}.", f"What is the time in {city}?"])
    return tool(r.choice(["get_time", "clock"]), "Get the time in a city", city=("string", "The city")), ask, [city], json.dumps({"time": time}), f"It is {time} in {city}."


def calculator(r):
    a, b, op = r.randrange(10, 1000), r.randrange(10, 1000), r.choice("+-*")
    ask = r.choice([f"What is {a} {op} {b}?", f"Calculate {a} {op} {b}.", f"Use the calculator for {a} {op} {b}."])
    v = {"+": a + b, "-": a - b, "*": a * b}[op]
    return tool(r.choice(["calculator", "calculate"]), "Calculate an expression", expression=("string", "The expression")), ask, [f"{a} {op} {b}"], str(v), f"{a} {op} {b} = {v}"


def search(r):
    what = r.choice(list(ANIMALS) + WORDS)
    ask = r.choice([f"Search for {what}.", f"Look up {what}.", f"Find something about {what}."])
    found = f"{what.capitalize()} is found near {r.choice(CITIES)}."
    return tool(r.choice(["search", "web_search"]), "Search for a text", query=("string", "What to search for")), ask, [what], found, f"I found this: {found}"


def message(r):
    who, what = r.choice(NAMES), r.choice(["I am late", "come home", "see you soon", "happy birthday", "dinner is ready", "call me"])
    ask = r.choice([f"Tell {who} \"{what}\".", f"Send a message to {who}: {what}", f"Write to {who}: {what}"])
    return tool("send_message", "Send a message", to=("string", "Who gets it"), text=("string", "The message")), ask, [who, what], "sent", f"I sent the message to {who}."


def timer(r):
    n = r.randrange(1, 60)
    ask = r.choice([f"Set a timer for {n} minutes.", f"Wake me in {n} minutes.", f"Start a timer of {n} minutes."])
    return tool("set_timer", "Set a timer", minutes=("integer", "How many minutes")), ask, [n], "ok", f"The timer is set to {n} minutes."


def order(r):
    n, what = r.randrange(1, 20), r.choice(FOODS)
    ask = r.choice([f"Buy {n} {what}.", f"Order {n} {what}, please.", f"I want {n} {what}."])
    return tool("order_food", "Order food", item=("string", "What to order"), count=("integer", "How many")), ask, [what, n], json.dumps({"order": "ok"}), f"I ordered {n} {what}."


KINDS = [weather, weather, clock, calculator, search, message, timer, order]


def tools(r):
    """Asks for a tool's work with one to three tools on offer; in one of six the question needs none of them."""
    kind = r.choice(KINDS)
    offered, ask, values, result, answer = kind(r)
    others = [k(r)[0] for k in r.sample([k for k in KINDS[1:] if k is not kind], r.choice([0, 0, 1, 2]))]
    listed = [offered, *others]
    r.shuffle(listed)
    system = "You are a helpful assistant." if r.random() < 0.3 else None
    messages = [{"role": "system", "content": system}] if system else []
    if r.random() < 1 / 6:
        user, think, text = question_turn(r) if kind is calculator or r.random() < 0.6 else arithmetic_turn(r)
        messages += [{"role": "user", "content": user}, {"role": "assistant", "reasoning_content": f"No tool is needed. {think}", "content": text}]
        return {"messages": messages, "tools": listed, "thinking": r.random() < 0.7}
    f = offered["function"]
    call = {"function": {"name": f["name"], "arguments": dict(zip(f["parameters"]["properties"], values))}}
    messages += [{"role": "user", "content": ask},
                 {"role": "assistant", "reasoning_content": f"I need the tool {f['name']}.", "content": "", "tool_calls": [call]}]
    if r.random() < 0.6:
        messages += [{"role": "tool", "content": result}, {"role": "assistant", "reasoning_content": "The tool has answered.", "content": answer}]
    return {"messages": messages, "tools": listed, "thinking": r.random() < 0.7}
