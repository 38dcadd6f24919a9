"""The tokenizer: byte-level BPE with the pre-tokenizer of Qwen3.5 (`qwen35` in GGUF), trained on the generated text."""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 2048
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # never shown
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]  # shown to parsers


def train(texts, path):
    """Trains on `texts` and writes `path` (tokenizer.json)."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    special = CONTROL + MARKS

    def plain():
        for text in texts:
            for s in special:
                text = text.replace(s, "\n")
            yield text

    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(special), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    t.train_from_iterator(plain(), trainer)
    t.add_tokens([AddedToken(s, special=s in CONTROL, normalized=False) for s in special])
    assert t.get_vocab_size() == VOCABULARY, t.get_vocab_size()
    t.save(str(path))


def load(path: Path):
    return Tokenizer.from_file(str(path))
