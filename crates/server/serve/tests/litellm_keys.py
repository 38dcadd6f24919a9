"""LiteLLM's own client manages virtual keys. Run by gateway_clients.rs: litellm_keys.py URL."""

import os
import sys
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import requests
from litellm.proxy.client.keys import KeysManagementClient

URL = sys.argv[1]
keys = KeysManagementClient(URL, "sk-master")


def ask(key, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    return requests.post(f"{URL}/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60).status_code


def get(path, **params):
    answer = requests.get(URL + path, params=params, headers={"Authorization": "Bearer sk-master"}, timeout=60)
    answer.raise_for_status()
    return answer.json()


made = keys.generate(models=["m"], duration="1h", key_alias="alice", user_id="u-1")
key = made["key"]
assert key.startswith("sk-") and made["models"] == ["m"] and made["expires"], made
assert (ask(key, "m"), ask(key, "other"), ask("sk-nobody", "m")) == (200, 403, 401)

info = keys.info(key)
assert info["key"] == key and info["info"]["key_alias"] == "alice", info
# The server counts what an answer cost when its client has all of it.
spent = info["info"]["spend"]
for _ in range(600):
    if spent:
        break
    time.sleep(0.1)
    spent = keys.info(key)["info"]["spend"]
assert abs(spent - (7 * 0.01 + 2 * 0.1)) < 1e-9, spent

second = keys.generate()
assert second["models"] == [] and ask(second["key"], "other") == 200, second
listed = keys.list(return_full_object=True)
assert listed["total_count"] == 2, listed
assert {k["token"] for k in listed["keys"]} == {made["token"], second["token"]}, listed
assert keys.list(key_alias="alice")["keys"] == [made["token"]]

updated = keys.update(key, models=["other"])
assert updated["models"] == ["other"] and updated["key_alias"] == "alice", updated
assert (ask(key, "m"), ask(key, "other")) == (403, 200)

[day] = get("/spend/logs", api_key=key)
assert abs(day["spend"] - 0.27) < 1e-9 and abs(day["models"]["m"] - 0.27) < 1e-9, day
report = {row["api_key"]: row for row in get("/global/spend/report", group_by="api_key")}
assert report[made["token"]]["total_input_tokens"] == 14, report
assert [m["model"] for m in report[made["token"]]["model_details"]] == ["m", "other"], report

assert keys.delete(keys=[key])["deleted_keys"] == [key]
assert keys.delete(keys=[second["token"]])["deleted_keys"] == [second["token"]]
assert ask(key, "other") == 401 and keys.list()["total_count"] == 0
