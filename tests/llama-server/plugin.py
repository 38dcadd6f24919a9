"""Loaded into the pytest that runs llama-server's tests: switches off what depends on their models, and records each outcome."""

import json
import os

FAILED, SKIPPED, PASSED = "failed", "skipped", "passed"
outcomes = {}


def pytest_configure():
    import utils

    # Fetches the models from Hugging Face.
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    # Compares what their models say.
    utils.match_regex = lambda regex, text: True


def pytest_runtest_logreport(report):
    """A test is set up, called and torn down; the worst of the three counts."""
    test = report.nodeid.removeprefix("unit/")
    before = outcomes.get(test)
    if report.outcome == FAILED and before != FAILED:
        outcomes[test], why = FAILED, getattr(report.longrepr, "reprcrash", None)
        record(test, str(why.message if why else report.longrepr).split("\n")[0])
    elif report.outcome == SKIPPED:
        outcomes[test] = SKIPPED
        record(test, "")
    elif report.when == "teardown" and before is None:
        outcomes[test] = PASSED
        record(test, "")


def record(test, why):
    """The last line of a test counts."""
    with open(os.environ["RESULTS"], "a") as out:
        out.write(json.dumps({"test": test, "outcome": outcomes[test], "why": why}) + "\n")
