"""Lets Schemathesis ask for what there is, and for little of it. Named to it by clients.py."""

import schemathesis

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
GENERATES = {"/v1/chat/completions": LIMITS[0], "/v1/completions": LIMITS[0], "/v1/responses": LIMITS[2], "/v1/messages": LIMITS[0]}
OLLAMA = ("/api/chat", "/api/generate")
MOST = 4


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def limit(body, names):
    for name in names:
        if is_number(body.get(name)) and body[name] > MOST:
            body[name] = MOST


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if not isinstance(body, dict):
        return
    if case.operation.path.startswith("/v1beta/models/{id}:") and "requests" not in body:
        case.path_parameters["id"] = "tiny"
        config = body.setdefault("generationConfig", {}) if "generateContent" in case.operation.path.lower() else None
        if isinstance(config, dict):
            limit(config, ("maxOutputTokens", "candidateCount"))
            config.setdefault("maxOutputTokens", MOST)
    # Any model is as good as this one, but there are no others.
    if isinstance(body.get("model"), str) and body["model"]:
        body["model"] = "tiny"
    limit(body, LIMITS)
    if case.operation.path in GENERATES and not any(is_number(body.get(name)) for name in LIMITS):
        body.setdefault(GENERATES[case.operation.path], MOST)
    if case.operation.path in OLLAMA:
        options = body.setdefault("options", {})
        if isinstance(options, dict):
            limit(options, ("num_predict",))
            options.setdefault("num_predict", MOST)
        # It stays loaded.
        body.pop("keep_alive", None)
