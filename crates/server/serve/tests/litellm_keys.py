"""LiteLLM's own client, and its command litellm-proxy, manage virtual keys, users and teams. Run by gateway_clients.rs: litellm_keys.py URL."""

import copy
import os
import pathlib
import subprocess
import sys
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import requests
from litellm.proxy.client import Client, UsersManagementClient
from litellm.proxy.client.exceptions import NotFoundError, UnauthorizedError
from litellm.proxy.client.keys import KeysManagementClient

from litellm.proxy import _types as shapes
from pydantic import TypeAdapter

URL = sys.argv[1]
keys = KeysManagementClient(URL, "sk-master")


def ask(key, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    return requests.post(f"{URL}/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60).status_code


def get(path, **params):
    answer = requests.get(URL + path, params=params, headers={"Authorization": "Bearer sk-master"}, timeout=60)
    answer.raise_for_status()
    return answer.json()


def has_shape(shape, answer):
    """Refuses an answer that LiteLLM's own type for it does not accept. Some of the types change what they are given."""
    TypeAdapter(getattr(shapes, shape)).validate_python(copy.deepcopy(answer))


made = keys.generate(models=["m"], duration="1h", key_alias="alice", user_id="u-1")
key = made["key"]
assert key.startswith("sk-") and made["models"] == ["m"] and made["expires"], made
assert (ask(key, "m"), ask(key, "other"), ask("sk-nobody", "m")) == (200, 403, 401)

info = keys.info(key)
assert info["key"] == key and info["info"]["key_alias"] == "alice", info
has_shape("GenerateKeyResponse", made)
has_shape("LiteLLM_VerificationToken", info["info"])
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
for row in listed["keys"]:
    has_shape("LiteLLM_VerificationToken", row)
has_shape("KeyListResponseObject", keys.list())
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

# Users and teams: what they may do holds for all of their keys together. An answer of m costs 0.27.
client, users = Client(URL, "sk-master"), UsersManagementClient(URL, "sk-master")


def post(path, **body):
    return client.http.request("POST", path, json=body)


def until(what, wanted):
    """An answer is counted when its client has all of it."""
    for _ in range(600):
        if what() >= wanted - 1e-9:
            return
        time.sleep(0.1)
    raise AssertionError(f"{what()}, not {wanted}")


def team_told():
    return client.teams.list()[0]


user = users.create_user({"user_id": "ann", "user_email": "ann@example.org", "user_role": "internal_user", "max_budget": 0.5})
assert user["user_id"] == "ann" and user["key"].startswith("sk-") and user["max_budget"] == 0.5, user
team = post("/team/new", team_alias="blue", models=["m"], max_budget=0.4, members_with_roles=[{"role": "admin", "user_id": "ann"}])
has_shape("NewUserResponse", user)
has_shape("LiteLLM_TeamTable", team)
has_shape("UserInfoResponse", users.get_user("ann"))
has_shape("UserInfoV2Response", users.get_user_v2("ann"))
for row in get("/user/list")["users"]:
    has_shape("LiteLLM_UserTableWithKeyCount", row)
has_shape("TeamInfoResponseObject", get("/team/info", team_id=team["team_id"]))
for row in client.teams.list():
    has_shape("TeamListResponseObject", row)
assert client.teams.list(user_id="ann")[0]["team_alias"] == "blue" and client.teams.list(user_id="bob") == []
page = client.teams.list_v2(team_id=team["team_id"])
assert (page["total"], page["teams"][0]["members_with_roles"][0]["user_id"]) == (1, "ann"), page
assert client.teams.get_available() == []
first = client.keys.generate(team_id=team["team_id"], key_alias="first")["key"]
second = client.keys.generate(team_id=team["team_id"], user_id="ann", key_alias="second")["key"]
assert ask(first, "m") == 200
until(lambda: team_told()["spend"], 0.27)
assert (ask(second, "m"), ask(second, "other")) == (200, 403)
until(lambda: team_told()["spend"], 0.54)
assert (ask(first, "m"), ask(second, "m")) == (429, 429)
# The user has a key beside those of the team.
assert ask(user["key"], "m") == 200
until(lambda: users.get_user_v2("ann")["spend"], 0.54)
assert ask(user["key"], "m") == 429
info = users.get_user("ann")
assert len(info["keys"]) == 2 and info["teams"][0]["team_id"] == team["team_id"], info
assert sorted(client.keys.list(team_id=team["team_id"], return_full_object=True)["keys"][i]["key_alias"] for i in (0, 1)) == ["first", "second"]
[day] = get("/spend/logs", user_id="ann")
assert abs(day["spend"] - 0.54) < 1e-9 and abs(day["teams"][team["team_id"]] - 0.27) < 1e-9, day
[day] = get("/global/spend/report", group_by="team", start_date="2020-01-01", end_date="2099-01-01", team_id=team["team_id"])
assert [(t["team_name"], round(t["total_spend"], 9)) for t in day["teams"]] == [("blue", 0.54)], day

client.keys.update(user["key"], team_id=team["team_id"])
assert client.keys.list(team_id=team["team_id"])["total_count"] == 3
post("/team/update", team_id=team["team_id"], max_budget=10)
post("/user/update", user_id="ann", max_budget=None)
assert (ask(first, "m"), ask(user["key"], "m"), ask(user["key"], "other")) == (200, 200, 403)
for block, wanted in (("block", 401), ("unblock", 200)):
    post(f"/team/{block}", team_id=team["team_id"])
    assert ask(first, "m") == wanted, block
added = post("/team/member_add", team_id=team["team_id"], member={"role": "user", "user_email": "bob@example.org"})
has_shape("TeamAddMemberResponse", added)
assert [m["role"] for m in added["members_with_roles"]] == ["admin", "user"], added
post("/team/member_delete", team_id=team["team_id"], user_email="bob@example.org")
try:
    users.get_user("nobody")
    raise AssertionError("there is no such user")
except NotFoundError:
    pass
try:
    UsersManagementClient(URL, "sk-wrong").list_users()
    raise AssertionError("this key is none")
except UnauthorizedError:
    pass

command = pathlib.Path(sys.executable).parent / "litellm-proxy"
environment = {**os.environ, "LITELLM_PROXY_URL": URL, "LITELLM_PROXY_API_KEY": "sk-master", "COLUMNS": "200", "NO_COLOR": "1"}


def run(*words):
    return subprocess.run([command, *words], env=environment, check=True, capture_output=True, text=True, timeout=120).stdout


assert "eve@example.org" in run("users", "create", "--email", "eve@example.org", "--team", team["team_id"], "--max-budget", "3")
listed = run("users", "list")
assert "ann@example.org" in listed and "eve@example.org" in listed and "internal_user" in listed, listed
assert "blue" in run("teams", "list")
assert "third" in run("keys", "generate", "--key-alias", "third", "--team-id", team["team_id"], "--models", "m")
assert users.delete_user(["ann"]) == 1
assert (ask(user["key"], "m"), ask(second, "m"), ask(first, "m")) == (401, 401, 200)
assert post("/team/delete", team_ids=[team["team_id"]]) == {"deleted_teams": [team["team_id"]]}
assert ask(first, "m") == 401 and client.teams.list() == []
