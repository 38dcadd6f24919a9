"""A few steps of training, as CI runs them: `python steps.py OCTET`, where OCTET is the program. A minute.

Makes some data; trains, and goes on from the checkpoint; the same without a break gives the same losses and weights. Exports to GGUF, which
Octet loads, and whose log-probabilities are those of the PyTorch model."""

import csv
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import old_torch  # noqa: F401  before what needs it; here, so that the processes that `train` starts have it too
import torch

import data
import export
import tokenizer
import train
from model import Config, Model

# The last number is of steps over which the rate falls: with one it stays as it is, whatever the number of steps.
HOW = ["--batch", "4", "--decay", "1", "--mtp-every", "1", "--save-every", "1e9"]
STEPS = 4
START_SECONDS = 120


def call(main, *arguments):
    sys.argv = [main.__module__, *map(str, arguments)]
    main()


def losses(folder):
    with open(folder / "loss.csv", newline="") as f:
        return [(int(r["step"]), float(r["loss"]), float(r["mtp"])) for r in csv.DictReader(f)]


def load(folder):
    saved = torch.load(folder / "last.pt", weights_only=False)
    assert saved["step"] == STEPS, saved["step"]
    return saved["model"], saved["config"]


def trained(work):
    """The weights after STEPS steps, with a break and without."""
    (work / "data").mkdir()
    source = data.Source(7)
    tokenizer.train((source.document()[1] for _ in range(2500)), work / "data/tokenizer.json")
    call(data.main, work / "data", "--tokens", 20_000, "--held-out", 20_000)
    for steps in (STEPS // 2, STEPS):
        call(train.main, work / "data", work / "broken", "--steps", steps, *HOW)
    call(train.main, work / "data", work / "whole", "--steps", STEPS, *HOW)
    broken, whole = losses(work / "broken"), losses(work / "whole")
    print("losses:", whole, flush=True)
    assert [step for step, _, _ in broken] == list(range(1, STEPS + 1)), broken
    # Sums in parallel are not the same to the last bit.
    for a, b in zip(broken, whole):
        assert all(abs(x - y) < 2e-3 for x, y in zip(a, b)), (a, b)
    assert whole[-1][1] < whole[0][1] and whole[-1][2] < whole[0][2], whole
    (state, config), (other, _) = load(work / "broken"), load(work / "whole")
    apart = max((state[name] - other[name]).abs().max().item() for name in state)
    print(f"weights after a break and without: {apart:.1e} apart at most", flush=True)
    assert apart < 1e-2, apart
    return state, config


@torch.no_grad()
def logprobs(state, config, ids):
    model = Model(Config(**config))
    model.load_state_dict(state)
    padded = torch.zeros(1, -(-len(ids) // 64) * 64, dtype=torch.long)
    padded[0, : len(ids)] = torch.tensor(ids)
    rows = model.logits(model.model(padded))[0, : len(ids) - 1].log_softmax(-1)
    return rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def address(server, log):
    """Where a server that was just started listens."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"the server has ended or does not start: {log.read_text()}")


def octets(octet, file, ids):
    """The same as a server gives them."""
    log = file.with_suffix(".log")
    with log.open("w") as out:
        server = subprocess.Popen([octet, "serve", file, "--exact", "--cache-type-k", "f32", "--cache-type-v", "f32", "--port", "0"], stdout=out, stderr=subprocess.STDOUT)
    try:
        body = json.dumps({"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}).encode()
        request = urllib.request.Request(address(server, log) + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
    finally:
        server.terminate()
        server.wait()


def main():
    octet = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        state, config = trained(work)
        tok = tokenizer.load(work / "data/tokenizer.json")
        call(export.main, work / "broken/last.pt", work / "data/tokenizer.json", work / "steps.gguf", "--type", "f32")
        ids = tok.encode("<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\nOnce upon a time there was a", add_special_tokens=False).ids
        want, got = logprobs(state, config, ids), octets(octet, work / "steps.gguf", ids)
        apart = sorted(abs(a - b) for a, b in zip(want, got))
        print(f"log-probabilities of {len(want)} tokens: {apart[len(apart) // 2]:.1e} apart in the middle, {apart[-1]:.1e} at most", flush=True)
        # Two experts that are as good as each other to the last bits may change places, for one token and what follows it.
        assert len(got) == len(want) and apart[len(apart) // 2] < 1e-3 and apart[-1] < 0.2, (want, got)


if __name__ == "__main__":
    main()
