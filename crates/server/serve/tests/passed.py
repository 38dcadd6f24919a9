"""Asks for what is passed on through OpenAI's library. Run by gateway_clients.rs: passed.py URL."""

import io
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
sound = ("a.wav", io.BytesIO(b"RIFF" * 500_000))
assert client.audio.transcriptions.create(model="ours", file=sound, language="de").text == "model=theirs language=de bytes=2000000"
assert client.audio.translations.create(model="ours", file=("a.wav", b"RIFF")).text == "model=theirs language= bytes=4"
with client.audio.speech.with_streaming_response.create(model="ours", voice="alloy", input="Hello") as speech:
    assert speech.headers["content-type"] == "audio/mpeg"
    assert b"".join(speech.iter_bytes()) == b"ID3 theirs Hello"
assert client.images.generate(model="ours", prompt="a fox").data[0].b64_json == "Zm94"
assert client.images.edit(model="ours", prompt="a fox", image=("a.png", b"PNG" * 100_000)).data[0].b64_json == "Zm94"
assert client.images.create_variation(model="ours", image=("a.png", b"PNG")).data[0].b64_json == "Zm94"
assert client.moderations.create(model="ours", input="Hello").results[0].flagged is False
file = client.files.create(file=("a.jsonl", b"{}" * 300_000), purpose="batch")
assert (file.id, file.bytes) == ("file-1", 600_000)
assert [f.id for f in client.files.list(purpose="batch")] == ["file-1"]
assert client.files.content(file.id).read() == b"{}"
assert client.files.delete(file.id).deleted
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
assert client.batches.retrieve(batch.id).status == "in_progress" and client.batches.cancel(batch.id).status == "cancelling"
for ask, kind, text in (
    (lambda: client.audio.transcriptions.create(model="busy", file=("a.wav", b"RIFF")), openai.RateLimitError, "Slow down"),
    (lambda: client.audio.transcriptions.create(model="nobody", file=("a.wav", b"RIFF")), openai.NotFoundError, "nobody"),
    (lambda: client.moderations.create(model="claude", input="Hello"), openai.BadRequestError, "has no /moderations"),
    (lambda: client.files.retrieve("file-2"), openai.NotFoundError, "No such file"),
):
    try:
        ask()
        raise AssertionError("that is an error")
    except openai.APIStatusError as e:
        assert type(e) is kind and text in e.message, repr(e)
print("fine")
