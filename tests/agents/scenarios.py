"""What every program is asked to do: one scenario for each feature, made of the program's own tools."""

import shutil

from harness import answer, check, png, task

DONE = {
    "tools": "EDIT-DONE",
    "parallel": "PARALLEL-DONE",
    "resume": "RESUME-DONE",
    "model": "MODEL-DONE",
    "agent": "AGENT-DONE",
    "image": "IMAGE-DONE",
    "screens": "SCREENS-DONE",
}

# In the order in which they run, and what the table of docs/compatibility.md calls them.
FEATURES = {
    "tools": "Several turns with tool calls",
    "resume": "Resume of a session",
    "parallel": "Two calls in one answer",
    "model": "A second model name",
    "agent": "Sub-agent",
    "image": "Screenshot in a tool result",
    "screens": "Ten screenshots that the model sees",
}

# How many; the template writes this before each.
SCREENS, SEEN = 10, "<|vision_start|>"


def script(p):
    """The script for a program. Titles and summaries repeat the user's words, without tools."""
    return {"tasks": p.script() or tasks(p), "otherwise": "A short title"}


def tasks(p):
    """Answers for all features, in the program's own tools."""
    out = [
        task(
            "TASK-TOOLS",
            answer("I write the file.", p.write("notes.txt", "alpha\n")),
            answer(p.shell("cat notes.txt")),
            answer(p.edit("notes.txt", "alpha", "beta"), expect="alpha"),
            answer(p.shell("cat notes.txt")),
            answer(f"Grüße: {DONE['tools']}", expect="beta"),
        ),
        task(
            "TASK-PARALLEL",
            answer("Both at once.", p.write("one.txt", "first\n"), p.write("two.txt", "second\n")),
            # Once more for programs that write the two into their history as one after the other.
            *[answer(DONE["parallel"])] * (2 if p.splits_calls else 1),
        ),
        task("TASK-RESUME", answer(DONE["resume"], history=DONE["tools"])),
        task("TASK-MODEL", answer(DONE["model"])),
    ]
    if p.agent:
        out += [
            task("SUBTASK-ONE", answer(p.shell("echo sub-$((60 + 4))")), p.subtask_done()),
            task(
                "TASK-AGENT",
                answer(p.agent("Please do SUBTASK-ONE.")),
                *(p.after_agent or []),
                answer(DONE["agent"], expect="SUB-DONE"),
            ),
        ]
    if p.image:
        out.append(task("TASK-IMAGE", answer(p.image("screen.png")), answer(DONE["image"], expect=p.image_expect)))
        calls = [p.image(f"screen{i}.png") for i in range(SCREENS)]
        out += [
            task("TASK-SCREENS", answer(calls[0]), *[answer(c, expect=SEEN) for c in calls[1:]], answer(DONE["screens"], expect=SEEN)),
            task("TASK-AGAIN", answer("AGAIN-DONE", history=SEEN)),
        ]
    return out


def tools(p):
    said = p.ask(f"{p.greeting}Please do TASK-TOOLS.")
    check(DONE["tools"] in said, f"it said: {said}")
    text = (p.place.project / "notes.txt").read_text()
    check(text.strip() == "beta", f"notes.txt holds {text!r}")


def parallel(p):
    said = p.ask("Please do TASK-PARALLEL.")
    check(DONE["parallel"] in said, f"it said: {said}")
    for name, wanted in (("one.txt", "first"), ("two.txt", "second")):
        path = p.place.project / name
        check(path.exists() and path.read_text().strip() == wanted, f"{name} was not written")


def resume(p):
    if p.last != "tools":
        tools(p)
    said = p.ask("Please do TASK-RESUME.", resume=True)
    check(DONE["resume"] in said, f"it said: {said}")


def model(p):
    said = p.ask("Please do TASK-MODEL.", model=p.second_model)
    check(DONE["model"] in said, f"it said: {said}")


def agent(p):
    said = p.ask("Please do TASK-AGENT.")
    check(DONE["agent"] in said, f"it said: {said}")


def image(p):
    (p.place.project / "screen.png").write_bytes(png())
    said = p.ask("Please do TASK-IMAGE.")
    check(DONE["image"] in said, f"it said: {said}")


def screens(p):
    """Each is in the prompts of all later turns, and of the session that is resumed: none may be encoded twice."""
    for i in range(SCREENS):
        (p.place.project / f"screen{i}.png").write_bytes(png(blue=20 * i))
    said = p.ask("Please do TASK-SCREENS.")
    check(DONE["screens"] in said, f"it said: {said}")
    said = p.ask("Please do TASK-AGAIN.", resume=True)
    check("AGAIN-DONE" in said, f"it said: {said}")
    prompts = [p.place.server.prompt(e) for e in p.place.server.entries() if e["task"] == "TASK-AGAIN"]
    seen = max((prompt.count(SEEN) for prompt in prompts), default=0)
    check(seen >= SCREENS, f"{seen} screenshots are in the last prompt")
    encoded = p.place.server.encoded_images()
    check(encoded == [SCREENS], f"{encoded} images were encoded")


def run(p, feature):
    """Runs one scenario in an empty project; a session is resumed where it was."""
    for path in [] if feature == "resume" and p.last == "tools" else p.place.project.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    {"tools": tools, "parallel": parallel, "resume": resume, "model": model, "agent": agent, "image": image, "screens": screens}[feature](p)
    p.last = feature
