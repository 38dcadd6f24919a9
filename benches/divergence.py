#!/usr/bin/env python3
"""What 8-bit activations cost in llama.cpp, measured as `octet perplexity --kl-divergence` measures it in Octet.

    benches/divergence.py MODEL.gguf TEXT.txt [-c 512]      then: octet perplexity MODEL.gguf -f TEXT.txt -c 512 --kl-divergence

Both compare a quantised model with the same weights in f32, over the same windows of the same tokens. llama.cpp gets a
copy of the file with every tensor dequantised (written beside the text's temporary files, removed afterwards).
"""
import argparse
import os
import tempfile

import gguf
import llama_cpp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("text")
parser.add_argument("-c", "--ctx-size", type=int, default=512)
args = parser.parse_args()


def dequantise(source, target):
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(target, architecture, use_temp_file=False)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def windows(model):
    """The text's tokens in windows of the context, each with BOS if the model has one, as Octet cuts them."""
    with open(args.text, "rb") as f:
        tokens = model.tokenize(f.read(), add_bos=False, special=False)
    bos = [model.token_bos()] if model._model.add_bos_token() else []
    length = args.ctx_size - len(bos)
    return [bos + tokens[i:i + length] for i in range(0, len(tokens), length)]


def log_probabilities(path):
    model = llama_cpp.Llama(path, n_ctx=args.ctx_size, n_batch=args.ctx_size, logits_all=True, verbose=False)
    for window in windows(model):
        if len(window) < 2:
            continue
        model.reset()
        model.eval(window)
        logits = np.array(model.scores[:len(window) - 1], dtype=np.float64)
        top = logits.max(axis=1, keepdims=True)
        yield logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)), window[1:]


with tempfile.TemporaryDirectory() as folder:
    exact = os.path.join(folder, "f32.gguf")
    dequantise(args.model, exact)
    kl, same, dp, nll = [], [], [], []
    for (q, following), (p, _) in zip(log_probabilities(args.model), log_probabilities(exact)):
        kl.append(np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        rows = np.arange(len(following))
        dp.append(np.exp(q[rows, following]) - np.exp(p[rows, following]))
        nll.append(-q[rows, following])
kl, same, dp, nll = map(np.concatenate, (kl, same, dp, nll))
print(f"llama.cpp, {len(kl)} tokens: perplexity {np.exp(nll.mean()):.4f}")
print(f"KL divergence  {kl.mean():.6f} ± {kl.std(ddof=1) / len(kl) ** 0.5:.6f} nats, mean")
print(f"               {np.median(kl):.6f} median, {np.quantile(kl, 0.99):.6f} 99%, {kl.max():.6f} maximum")
print(f"same top token {100 * same.mean():.2f}%")
print(f"RMS Δp         {100 * np.sqrt((dp ** 2).mean()):.3f}%")
