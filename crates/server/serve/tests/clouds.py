"""Amazon's and Google's servers as their own libraries see them: checks a request's signature and shape with botocore, and a statement of a
service account with google-auth. Run by gateway_clients.rs: clouds.py DIRECTORY; prints its port, and answers until its input ends."""

import datetime
import http.server
import json
import sys
import threading
import urllib.parse
from pathlib import Path

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.eventstream
import botocore.loaders
import botocore.model
import botocore.validate
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from google.oauth2 import service_account

ACCESS, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-central-1"
SERVICE = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2"))
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EMAIL, KEY_ID = "octet@project.iam.gserviceaccount.com", "abc123"


def credentials(port):
    """A service account's key file; Google's library has to take it, too."""
    kind, form, none = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    info = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": KEY_ID,
        "private_key": KEY.private_bytes(kind, form, none).decode(),
        "client_email": EMAIL,
        "token_uri": f"http://127.0.0.1:{port}/token",
    }
    service_account.Credentials.from_service_account_info(info)
    return info


def check_signature(handler, body):
    """Signs the request again, at the time that it names, with what it says it signed."""
    given = handler.headers["Authorization"]
    signed = given.split("SignedHeaders=")[1].split(",")[0].split(";")
    at = datetime.datetime.strptime(handler.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    assert abs((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - at).total_seconds()) < 300, at
    botocore.auth.get_current_datetime = lambda remove_tzinfo=True: at
    headers = {name: handler.headers[name] for name in signed if name not in ("host", "x-amz-date")}
    url = f"http://{handler.headers['Host']}{handler.path}"
    request = botocore.awsrequest.AWSRequest("POST", url, data=body, headers=headers)
    keys = botocore.credentials.Credentials(ACCESS, SECRET)
    botocore.auth.SigV4Auth(keys, "bedrock", REGION).add_auth(request)
    assert request.headers["Authorization"] == given, (request.headers["Authorization"], given)


def check_shape(operation, parameters):
    """As botocore checks parameters before it sends them."""
    shape = SERVICE.operation_model(operation).input_shape
    report = botocore.validate.ParamValidator().validate(parameters, shape)
    assert not report.has_errors(), report.generate_report()


def unpacked(value):
    """Bytes are in base64 on the wire."""
    if isinstance(value, dict):
        return {k: v.encode() if k == "bytes" else unpacked(v) for k, v in value.items()}
    return [unpacked(v) for v in value] if isinstance(value, list) else value


def frame(name, payload):
    import binascii
    import struct

    body, head = json.dumps(payload).encode(), b""
    for key, value in ((":message-type", "event"), (":event-type", name), (":content-type", "application/json")):
        head += struct.pack("!B", len(key)) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    out = prelude + head + body
    out += struct.pack("!I", binascii.crc32(out))
    buffer = botocore.eventstream.EventStreamBuffer()
    buffer.add_data(out)
    assert next(buffer).headers[":event-type"] == name
    return out


CONVERSED = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hello from "}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Bedrock"}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12}, "metrics": {"latencyMs": 5}}),
]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.answer(body)
        except Exception as e:  # what is wrong is the answer, and the test's client hears it
            self.say(400, json.dumps({"message": repr(e), "error": {"message": repr(e), "status": "INVALID_ARGUMENT"}}).encode())

    def answer(self, body):
        if self.path == "/token":
            return self.token(urllib.parse.parse_qs(body.decode()))
        if self.path.startswith("/v1/projects/"):
            assert self.headers["Authorization"] == "Bearer ya29.token", self.headers["Authorization"]
            if self.path.endswith("/text-embedding-005:predict"):
                vectors = [{"embeddings": {"values": [0.5, 0.25], "statistics": {"token_count": 1}}} for _ in json.loads(body)["instances"]]
                return self.say(200, json.dumps({"predictions": vectors}).encode())
            assert self.path == "/v1/projects/project/locations/us-central1/publishers/google/models/gemini-2.5-flash:generateContent", self.path
            content = {"role": "model", "parts": [{"text": "Hello from Vertex"}]}
            said = {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}}
            return self.say(200, json.dumps(said).encode())
        check_signature(self, body)
        _, _, model, operation = self.path.split("/")
        json_body = json.loads(body)
        if operation == "invoke":
            check_shape("InvokeModel", {"modelId": urllib.parse.unquote(model), "body": body})
            if "embed" in model:
                assert list(json_body) == ["inputText"], json_body
                return self.say(200, json.dumps({"embedding": [0.5, 0.25], "inputTextTokenCount": 1}).encode())
            assert json_body["anthropic_version"] == "bedrock-2023-05-31" and "model" not in json_body, json_body
            content = [{"type": "text", "text": "Hello from Bedrock"}]
            said = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content}
            said |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 3}}
            return self.say(200, json.dumps(said).encode())
        check_shape("ConverseStream" if operation.endswith("stream") else "Converse", unpacked(json_body) | {"modelId": urllib.parse.unquote(model)})
        if operation == "converse-stream":
            return self.say(200, b"".join(frame(*e) for e in CONVERSED), "application/vnd.amazon.eventstream")
        said = {"output": {"message": {"role": "assistant", "content": [{"text": "Hello from Bedrock"}]}}, "stopReason": "end_turn"}
        return self.say(200, json.dumps(said | {"usage": CONVERSED[-1][1]["usage"], "metrics": {"latencyMs": 5}}).encode())

    def token(self, form):
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"], form
        public = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        claims = jwt.decode(form["assertion"][0], certs={KEY_ID: public}, audience=f"http://127.0.0.1:{self.server.server_port}/token")
        assert claims["iss"] == EMAIL and claims["scope"] == "https://www.googleapis.com/auth/cloud-platform", claims
        self.say(200, json.dumps({"access_token": "ya29.token", "expires_in": 3599, "token_type": "Bearer"}).encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
(Path(sys.argv[1]) / "vertex.json").write_text(json.dumps(credentials(server.server_port)))
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
