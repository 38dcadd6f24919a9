"""The generated training text: one function a domain, each a conversation (a list of messages, and tools) or plain text.

A conversation is `{"messages": [...], "tools": [...] or None, "thinking": bool}`; `data.py` renders it by the chat template."""

import json

from stories import ANIMALS, FOODS, NAMES, TRAITS, article, plan, tell, thought

NAME = "Fox"
CITIES = "Paris London Rome Berlin Madrid Oslo Vienna Lisbon Tokyo Cairo Delhi Lima Dublin Athens Prague Zurich Boston Chicago".split()
CAPITALS = {"France": "Paris", "England": "London", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Norway": "Oslo",
            "Austria": "Vienna", "Portugal": "Lisbon", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "Ireland": "Dublin",
            "Greece": "Athens", "Sweden": "Stockholm", "Poland": "Warsaw", "Switzerland": "Bern"}
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "day": "night", "happy": "sad", "old": "young", "up": "down", "wet": "dry",
             "light": "dark", "long": "short", "full": "empty", "open": "closed", "left": "right", "early": "late", "hard": "soft"}
COLOURS = {"the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "a tomato": "red", "coal": "black", "an orange": "orange",
           "a frog": "green", "a fox": "red", "a crow": "black", "the sea": "blue", "milk": "white", "a banana": "yellow"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
WORDS = "apple river stone house garden bread window table paper letter mountain bottle candle street summer winter bird flower".split()
UNKNOWN = ["quantum physics", "the stock market", "the history of Rome", "chemistry", "the theory of relativity", "computer chips", "law", "medicine",
           "politics", "football", "the economy", "philosophy", "music theory", "black holes", "compilers", "databases", "machine learning", "the sea floor"]
CAN = "I can tell stories about animals, add small numbers, answer simple questions, write JSON and short Python functions, and call tools."


def talk(*turns, thinking=True, tools=None, system=None):
    """A conversation of (user, thought, answer) turns."""
    messages = [{"role": "system", "content": system}] if system else []
    for user, think, answer in turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "reasoning_content": think, "content": answer}]
    return {"messages": messages, "tools": tools, "thinking": thinking}


def story_turn(r):
    kind = r.random()
    name = trait = friend = None
    animal = "fox" if r.random() < 0.3 else r.choice(list(ANIMALS))
    a = article(animal)
    short = r.random() < 0.3
    word = "short story" if short else "story"
    if kind < 0.5:
        ask = r.choice([f"Tell me a {word} about {a}.", f"Write a {word} about {a}.", f"Tell me a {word} about {a}", f"Can you tell me a {word} about {a}?",
                        f"I want to hear a {word} about {a}.", f"tell me a {word} about {a}", f"Please tell a {word} about {a}.", f"A {word} about {a}, please."])
    elif kind < 0.65:
        name = r.choice(NAMES)
        ask = r.choice([f"Tell me a {word} about {a} named {name}.", f"Write a {word} about {a} called {name}.", f"Can you tell me a {word} about {name} the {animal}?"])
    elif kind < 0.75:
        trait = r.choice(TRAITS)
        ask = r.choice([f"Tell me a {word} about {article(trait + ' ' + animal)}.", f"Write a {word} about {article(trait + ' ' + animal)}."])
    elif kind < 0.9:
        friend = r.choice([x for x in ANIMALS if x != animal])
        ask = r.choice([f"Tell me a {word} about {a} and {article(friend)}.", f"Write a {word} with {a} and {article(friend)}."])
    else:
        animal = None
        ask = r.choice([f"Tell me a {word}.", f"Tell me a {word}", "Once upon a time", f"I would like a {word}.", f"Can you tell me a {word}?"])
    p = plan(r, animal, name, trait, friend)
    return ask, thought(p), tell(r, p, short)


def story(r):
    if r.random() < 0.25:
        return tell(r, plan(r))
    ask, think, text = story_turn(r)
    if r.random() < 0.1:
        more = plan(r)
        return talk((ask, think, text), (r.choice(["Tell me another one.", "Another story, please.", "One more!"]), thought(more), tell(r, more, True)))
    return talk((ask, think, text), thinking=r.random() < 0.75)


def sum_steps(a, b):
    """Column addition in words, from the right."""
    steps, carry, out, x, y = [], 0, "", str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        steps.append(f"{p} + {q}" + (f" + {carry}" if carry else "") + f" = {s}")
        out, carry = str(s % 10) + out, s // 10
    if carry:
        out = str(carry) + out
    return ", ".join(steps) + f". So {a + b}."


def arithmetic_turn(r):
    kind = r.random()
    top = r.choice([10, 20, 100, 100, 1000])
    a, b = r.randrange(top), r.randrange(top)
    if kind < 0.45:
        ask = r.choice([f"What is {a} + {b}?", f"{a} + {b}", f"{a}+{b}=", f"What is {a} plus {b}?", f"Add {a} and {b}.", f"How much is {a} + {b}?"])
        return ask, sum_steps(a, b), r.choice([f"{a} + {b} = {a + b}", f"{a} + {b} = {a + b}", f"The answer is {a + b}."])
    if kind < 0.6:
        a, b = max(a, b) % 20, min(a, b) % 10
        a, b = max(a, b), min(a, b)
        ask = r.choice([f"What is {a} - {b}?", f"{a} - {b}", f"What is {a} minus {b}?"])
        return ask, f"{a} - {b} = {a - b}.", f"{a} - {b} = {a - b}"
    if kind < 0.75:
        a, b = r.randrange(11), r.randrange(11)
        ask = r.choice([f"What is {a} * {b}?", f"{a} * {b}", f"What is {a} times {b}?"])
        return ask, f"{a} times {b} is {a * b}.", f"{a} * {b} = {a * b}"
    if kind < 0.87:
        who, what = r.choice(NAMES), r.choice(FOODS[:3] + FOODS[6:])
        a, b = r.randrange(2, 12), r.randrange(2, 9)
        ask = f"{who} has {a} {what} and finds {b} more. How many {what} does {who} have now?"
        return ask, f"{a} and {b} more: {a} + {b} = {a + b}.", f"{who} has {a + b} {what}."
    start = r.randrange(1, 12)
    n = r.randrange(start + 3, start + 10)
    return r.choice([f"Count from {start} to {n}.", f"count from {start} to {n}"]), f"Start at {start}, stop at {n}.", ", ".join(map(str, range(start, n + 1)))


def arithmetic(r):
    return talk(*[arithmetic_turn(r) for _ in range(r.choice([1, 1, 1, 2, 3]))], thinking=r.random() < 0.8)


def question_turn(r):
    kind = r.random()
    if kind < 0.45:
        n = "fox" if r.random() < 0.2 else r.choice(list(ANIMALS))
        plural, looks, home, food, sound, young, legs, can = ANIMALS[n]
        a = article(n)
        ask, key, answer = r.choice([
            (f"What does {a} eat?", f"food of {a}: {food}", f"{a.capitalize()} eats {food}."),
            (f"What do {plural} eat?", f"food of {a}: {food}", f"{plural.capitalize()} eat {food}."),
            (f"Where does {a} live?", f"home of {a}: {home}", f"{a.capitalize()} lives in {home}."),
            (f"Where do {plural} live?", f"home of {a}: {home}", f"{plural.capitalize()} live in {home}."),
            (f"What sound does {a} make?", f"sound of {a}: it {sound}", f"{a.capitalize()} {sound}."),
            (f"What is a young {n} called?", f"young of {a}: {young}", f"A young {n} is called {young}."),
            (f"How many legs does {a} have?", f"legs of {a}: {legs}", f"{a.capitalize()} has {NUMBERS[legs]} legs."),
            (f"What does {a} look like?", f"looks of {a}: {looks}", f"{a.capitalize()} has {looks}."),
            (f"What can {a} do?", f"skill of {a}: {can}", f"{a.capitalize()} can {can}."),
            (f"What is {a}?", f"facts: lives in {home}, eats {food}", f"{a.capitalize()} is an animal with {looks}. It lives in {home} and eats {food}. It can {can}.")])
        return ask, f"The {key}.", answer
    if kind < 0.55:
        c = r.choice(list(CAPITALS))
        return r.choice([f"What is the capital of {c}?", f"Which city is the capital of {c}?"]), f"{c}: {CAPITALS[c]}.", f"The capital of {c} is {CAPITALS[c]}."
    if kind < 0.63:
        w = r.choice(list(OPPOSITES))
        return r.choice([f"What is the opposite of {w}?", f"What is the opposite of \"{w}\"?"]), f"{w}: {OPPOSITES[w]}.", f"The opposite of {w} is {OPPOSITES[w]}."
    if kind < 0.71:
        w = r.choice(list(COLOURS))
        return f"What colour is {w}?", f"{w}: {COLOURS[w]}.", f"{w.capitalize()} is {COLOURS[w]}."
    if kind < 0.78:
        xs, what = r.choice([(DAYS, "day"), (MONTHS, "month")])
        i, step = r.randrange(len(xs)), r.choice([1, -1])
        side = "after" if step == 1 else "before"
        other = xs[(i + step) % len(xs)]
        return f"Which {what} comes {side} {xs[i]}?", f"{side} {xs[i]}: {other}.", f"{other} comes {side} {xs[i]}."
    if kind < 0.9:
        ask, answer = r.choice([
            ("Who are you?", f"I am {NAME}, a very small language model with many small experts. {CAN}"),
            ("What are you?", f"I am {NAME}, a very small language model. {CAN}"),
            ("What is your name?", f"My name is {NAME}."), ("What can you do?", CAN), ("Help", CAN), ("What should I ask you?", CAN),
            ("Hello", "Hello! What can I do for you?"), ("Hi", "Hello! What can I do for you?"), ("Hello!", "Hello! What can I do for you?"),
            ("How are you?", "I am well, thank you. What can I do for you?"), ("Good morning", "Good morning! What can I do for you?"),
            ("Thank you", "You are welcome!"), ("Thanks!", "You are welcome!"), ("Goodbye", "Goodbye!"), ("Are you a person?", f"No, I am {NAME}, a very small language model."),
            ("Why is the sky blue?", "Small parts of the air scatter blue light more than red light, so the sky looks blue.")])
        return ask, "A simple question.", answer
    t = r.choice(UNKNOWN)
    ask = r.choice([f"Explain {t}.", f"What do you know about {t}?", f"Tell me about {t}.", f"Can you explain {t} to me?", f"How does {t} work?", f"Write an essay about {t}."])
    return ask, f"I do not know much about {t}.", f"I am a very small model and do not know about {t}. {CAN}"


def question(r):
    system = r.choice(["You are a helpful assistant.", "You are Fox.", "Answer in one sentence."]) if r.random() < 0.15 else None
    return talk(*[question_turn(r) for _ in range(r.choice([1, 1, 2, 3]))], thinking=r.random() < 0.7, system=system)


def text_turn(r):
    kind, ws = r.random(), r.sample(WORDS, r.randrange(3, 6))
    text = ", ".join(ws)
    if kind < 0.3:
        say = r.choice([" ".join(ws), f"The {ws[0]} is near the {ws[1]}.", f"{r.choice(NAMES)} likes the {ws[0]}."])
        return r.choice([f"Repeat: {say}", f"Say this again: {say}", f"Repeat after me: {say}"]), "Repeat it word for word.", say
    if kind < 0.5:
        return r.choice([f"Sort these words: {text}", f"Put these words in order: {text}"]), "By the alphabet: " + " ".join(sorted(w[0] for w in ws)) + ".", ", ".join(sorted(ws))
    if kind < 0.65:
        return f"Write these words backwards, last word first: {text}", "From the last to the first.", ", ".join(ws[::-1])
    if kind < 0.8:
        return f"Make a list of these words: {text}", "One line each.", "\n".join(f"- {w}" for w in ws)
    name = r.choice(NAMES)
    return r.choice([f"Say hello to {name}.", f"Greet {name}."]), f"Greet {name}.", f"Hello, {name}!"


def text(r):
    return talk(*[text_turn(r) for _ in range(r.choice([1, 2]))], thinking=r.random() < 0.7)


def json_turn(r):
    kind = r.random()
    if kind < 0.35:
        n = r.choice(list(ANIMALS))
        _, _, home, food, sound, _, legs, _ = ANIMALS[n]
        d = {"animal": n, "home": home, "food": food, "legs": legs}
        return r.choice([f"Describe {article(n)} as JSON.", f"Write a JSON object about {article(n)}.", f"{article(n).capitalize()} as JSON, please."]), "Keys: animal, home, food, legs.", json.dumps(d)
    if kind < 0.75:
        name, age, city, likes = r.choice(NAMES), r.randrange(5, 90), r.choice(CITIES), r.choice(FOODS)
        d = {"name": name, "age": age, "city": city, "likes": likes}
        keys = r.sample(list(d), r.randrange(2, 5))
        said = {"name": f"The name is {name}.", "age": f"{name} is {age} years old.", "city": f"{name} lives in {city}.", "likes": f"{name} likes {likes}."}
        ask = r.choice(["Write this as JSON:", "Turn this into JSON:", "Give me JSON for this:"]) + " " + " ".join(said[k] for k in keys)
        return ask, "Keys: " + ", ".join(keys) + ".", json.dumps({k: d[k] for k in keys}, indent=2 if r.random() < 0.3 else None)
    ws = r.sample(WORDS, r.randrange(2, 5))
    return f"Write a JSON array of these words: {', '.join(ws)}", "An array of strings.", json.dumps(ws)


def jsons(r):
    return talk(*[json_turn(r) for _ in range(r.choice([1, 1, 2]))], thinking=r.random() < 0.7)


OPERATIONS = {"add": ("adds two numbers", "a, b", "return a + b"), "subtract": ("subtracts two numbers", "a, b", "return a - b"),
              "multiply": ("multiplies two numbers", "a, b", "return a * b"), "square": ("squares a number", "x", "return x * x"),
              "is_even": ("checks if a number is even", "n", "return n % 2 == 0"), "is_odd": ("checks if a number is odd", "n", "return n % 2 == 1"),
              "double": ("doubles a number", "x", "return x * 2"), "maximum": ("returns the larger of two numbers", "a, b", "if a > b:\n        return a\n    return b"),
              "minimum": ("returns the smaller of two numbers", "a, b", "if a < b:\n        return a\n    return b"),
              "absolute": ("returns the absolute value of a number", "x", "if x < 0:\n        return -x\n    return x"),
              "factorial": ("computes the factorial of a number", "n", "result = 1\n    for i in range(1, n + 1):\n        result *= i\n    return result"),
              "total": ("adds up a list", "items", "result = 0\n    for item in items:\n        result += item\n    return result"),
              "count": ("counts the items of a list", "items", "result = 0\n    for item in items:\n        result += 1\n    return result"),
              "average": ("returns the average of a list", "items", "return sum(items) / len(items)"),
              "reverse": ("reverses a string", "text", "return text[::-1]"), "is_palindrome": ("checks if a word is a palindrome", "word", "return word == word[::-1]"),
              "greet": ("greets a person by name", "name", "return f\"Hello, {name}!\""), "shout": ("makes a string upper case", "text", "return text.upper()"),
              "largest": ("finds the largest item of a list", "items", "best = items[0]\n    for item in items:\n        if item > best:\n            best = item\n    return best"),
              "fibonacci": ("returns the n-th Fibonacci number", "n", "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
              "first": ("returns the first item of a list", "items", "return items[0]"), "last": ("returns the last item of a list", "items", "return items[-1]")}


def code_turn(r):
    n = r.choice(list(OPERATIONS))
    what, args, body = OPERATIONS[n]
    doc = f'    """{what[0].upper() + what[1:]}."""\n' if r.random() < 0.3 else ""
    if r.random() < 0.25:
        new = r.choice([f"my_{n}", f"{n}_it", f"do_{n}"])
        ask, n = f"Write a Python function {new} that {what}.", new
    else:
        ask = r.choice([f"Write a Python function that {what}.", f"Write Python code that {what}.", f"How do I write a function that {what} in Python?", f"Give me a Python function that {what}."])
    return ask, f"Name: {n}. Arguments: {args}.", f"```python\ndef {n}({args}):\n{doc}    {body}\n```"


def code(r):
    return talk(*[code_turn(r) for _ in range(r.choice([1, 1, 2]))], thinking=r.random() < 0.7)
