"""A provider that speaks HTTP/2 over TLS, by the library h2. Run by gateway_clients.rs: h2_provider.py DIRECTORY; writes the certificate of its
authority there, prints its port, and answers until its input ends. It answers `many` only when as many as are asked for wait."""

import asyncio
import datetime
import ipaddress
import json
import ssl
import sys
from pathlib import Path

import h2.config
import h2.connection
import h2.events
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

MANY, STREAMS = 80, 70


def certificate(folder):
    """One that signs itself, for this machine."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "octet test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=30)).add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(made.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class Connection(asyncio.Protocol):
    made, waiting = 0, []

    def connection_made(self, transport):
        Connection.made += 1
        self.transport, self.bodies, self.paths = transport, {}, {}
        assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.h2.initiate_connection()
        self.h2.update_settings({3: STREAMS})
        transport.write(self.h2.data_to_send())

    def data_received(self, data):
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self.bodies[event.stream_id] = b""
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.answer(event.stream_id, json.loads(self.bodies.pop(event.stream_id)))
        self.transport.write(self.h2.data_to_send())

    def answer(self, stream, body):
        if body["model"] == "many":
            Connection.waiting.append((self, stream, body))
            if len(Connection.waiting) == MANY:
                for connection, stream, body in Connection.waiting:
                    connection.say(stream, body)
                    connection.transport.write(connection.h2.data_to_send())
                Connection.waiting.clear()
            return
        self.say(stream, body)

    def say(self, stream, body):
        text = f"{Connection.made} connections"
        head = {"id": "x", "created": 1, "model": "theirs"}
        if body.get("stream"):
            piece = lambda delta, finish: head | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            events = [piece({"role": "assistant", "content": text}, None), piece({}, "stop")]
            said = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            said, kind = json.dumps(head | {"object": "chat.completion", "choices": [choice]}), "application/json"
        self.h2.send_headers(stream, [(":status", "200"), ("content-type", kind)])
        self.h2.send_data(stream, said.encode(), end_stream=True)


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, ssl=certificate(Path(sys.argv[1])))
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
