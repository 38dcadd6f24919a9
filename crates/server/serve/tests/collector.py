"""A collector of OpenTelemetry's spans, with OpenTelemetry's own messages: prints what it was sent, a line of JSON for each request.

Started by `serve/gateway_callbacks.rs`; its first line is the port that it listens at.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector(BaseHTTPRequestHandler):
    """Takes POST /v1/traces."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        sent = ExportTraceServiceRequest()
        sent.ParseFromString(body)
        told = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "sent": MessageToDict(sent)}
        print(json.dumps(told), flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Nothing but what was sent is printed."""


server = HTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
