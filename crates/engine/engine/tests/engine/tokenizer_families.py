"""Makes fixtures/tokenizers.json: tiny vocabularies with the ids that other libraries give.

    pip install tokenizers==0.23.3 tiktoken==0.14.0 sentencepiece==0.2.3 protobuf
    python tokenizer_families.py > ../fixtures/tokenizers.json

The pre-tokenizers are those of the models' own files, run by PyPI's `tokenizers`, whose regular expressions are Oniguruma's.
"""
import base64, io, json, sys

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "", " ", "  ", "\t\n", "\n\n\n x", "\r\n\r\n x", "a  b   c    d", "trailing   ", "\n leading",
    "Hello, y'all! I've been 'told he's there, 'RE you sure? 'M not sure I'll make it. We'Ve a'lL It's IT'S",
    "3 33 333 3333 33333 1234567 1,234,567.89 0x1F4a 12ab34CD 1234x ½¾¼½ x² ①② ٣٤٥٦٧",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # ok\n\n\n/* a */ //b\n/\n",
    "camelCaseWord HTTPServer iPhone CAN'T snake_case __init__ $var @user #tag a.b.c (x) [y] {z}",
    "我想在apple工作。今天，我们去！２０２５年", "日本語テキスト、カタカナ。ｶﾅ", "한국어 텍스트. 조선글 ㄱㄴ", "Привет, мир! ΣΑΣ ǅ ʰª",
    "مرحبا ۱۲۳ नमस्ते क्षि สวัสดี កាន់តែ ລາວ မြန်", "e\u0301 a\u0308 n\u0303 \u212b \u1100\u1161\u11a8 x\u0300\u0301y",
    "🚀 (ok) 😶‍🌫️ 👨‍👩‍👧 🇩🇪 ✅", "ﬁ ㎏ Ｆｕｌｌ ÀÉÎ àéî ÀéÎ Café ß İı ſ's", "a\u00a0b\u2003c\u3000d\u200be\u2028f\x00g\x7fh\ufeff",
    "...!!!???;;;---===___~~~'''\"\"\"```«»“”…—$5 €3 ±2% 5°", "C:\\dir https://x.org/a?b=1&c=%20 ~/x && y || z",
    "one two three four\nfive six\n\nseven eight", "\\frac{1}{2} <b>x</b> &amp; a'b'c ''' 's",
]  # fmt: skip

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def o200k(numbers, contractions):
    return rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{contractions}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{contractions}|{numbers}{TAIL}"


SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
NO_HAN_UPPER, NO_HAN_LOWER = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
KIMI = (
    r"[\p{Han}]+|"
    + rf"[^\r\n\p{{L}}\p{{N}}]?{NO_HAN_UPPER}*{NO_HAN_LOWER}+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{NO_HAN_UPPER}+{NO_HAN_LOWER}*{SUFFIX}"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def at(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


DIGITS = pre_tokenizers.Digits(individual_digits=True)
# Steps, whether characters are composed, whether a word that is a token stays whole.
PRE = {
    "qwen35": ([at(QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"))], True, False),
    "qwen2": ([at(QWEN)], True, False),
    "hunyuan": ([at(QWEN)], True, True),
    "llama-bpe pixtral lfm2 glm4": ([at(CL100K)], False, True),
    "dbrx": ([at(CL100K)], False, False),
    "gpt-4o llama4": ([at(o200k(r"\p{N}{1,3}", SUFFIX))], False, True),
    "tekken": ([at(o200k(r"\p{N}", ""))], False, True),
    "kimi-k2": ([at(KIMI)], False, True),
    "deepseek-v3": ([at(r"\p{N}{1,3}"), at("[一-龥぀-ゟ゠-ヿ]+"), at(DEEPSEEK3)], False, False),
    "deepseek-coder": ([at("[\r\n]"), at(r"\s?\p{L}+"), at(r"\s?\p{P}+"), at("[一-龥ࠀ-一가-\ud7ff]+"), DIGITS], False, False),
    "seed-coder": ([at(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")], False, False),
    "bailingmoe2": ([at(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")], False, False),
    "gpt-2 exaone4": ([at(GPT2)], False, False),
    "starcoder refact mellum2": ([DIGITS, at(GPT2)], False, False),
    "command-r": ([DIGITS, at(GPT2)], True, False),
    "superbpe": ([at(r"\p{N}+"), at(r"(?=(\d{3})+(?!\d))")], False, False),
    "tiny_aya": ([at(r"\d{1,3}(?=(?:\d{3})*\b)"), at(o200k(r"\p{N}{1,3}", SUFFIX))], False, False),
}  # fmt: skip
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
FALCON = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        at("[0-9][0-9][0-9]"),
    ]
)


def ids(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def byte_level():
    """One vocabulary, whose merges cross the borders of words, and each text's ids by pre-tokenizer."""
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = BYTES
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    whole.train_from_iterator(TEXTS + [t[1:] for t in TEXTS] + [t * 2 for t in TEXTS], trainer)
    model = json.loads(whole.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda t: t[1])]
    merges = [tuple(m) for m in model["merges"]]
    by_text = [{} for _ in TEXTS]
    rows = {**PRE, "falcon": (None, False, False)}
    for names, (steps, nfc, whole_words) in rows.items():
        t = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=whole_words))
        t.pre_tokenizer = FALCON if steps is None else pre_tokenizers.Sequence([*steps, BYTES])
        if nfc:
            t.normalizer = normalizers.NFC()
        for text, found in zip(by_text, ids(t)):
            text.setdefault(json.dumps(found, separators=(",", ":")), []).extend(names.split())
    wanted = [[{"ids": json.loads(i), "names": n} for i, n in text.items()] for text in by_text]
    return {"tokens": tokens, "merges": [" ".join(m) for m in merges], "ids": wanted}


def ranks(spelled):
    """The same tokens by tiktoken, with tekken's expression."""
    alphabet = {c: b for b, c in bytes_to_unicode().items()}
    as_bytes = [bytes(alphabet[c] for c in t) for t in spelled["tokens"]]
    t = tiktoken.Encoding("tiny", pat_str=o200k(r"\p{N}", ""), mergeable_ranks={b: i for i, b in enumerate(as_bytes)}, special_tokens={})
    kimi = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks={b: i for i, b in enumerate(as_bytes)}, special_tokens={})
    return {
        "tokens": [base64.b64encode(b).decode() for b in as_bytes],
        "pattern": o200k(r"\p{N}", ""),
        "tekken": [t.encode_ordinary(x) for x in TEXTS],
        "kimi": [kimi.encode_ordinary(x) for x in TEXTS],
    }


def bytes_to_unicode():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def gemma():
    """BPE of plain text with byte tokens."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    # Pieces without a space behind another character, as SentencePiece makes them.
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = t.normalizer
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?<!▁)(?=▁)|(?<=\n)(?!\n)|(?<!\n)(?=\n)"), "isolated")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=special, limit_alphabet=70, show_progress=False)
    trained.train_from_iterator(TEXTS * 3 + ["\n\n\n    x"] * 5, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(m) for m in model["merges"]]
    t.model = models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens(special[:4])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 2)])
    return {"json": json.loads(t.to_str()), "ids": ids(t), "single": t.encode("a b").ids}


def word_piece(lowercase):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(vocab_size=360, special_tokens=special, limit_alphabet=110, show_progress=False))
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    t.decoder = decoders.WordPiece()
    return {"json": json.loads(t.to_str()), "ids": ids(t), **framed(t)}


def framed(t):
    pair = t.encode("one two", "three")
    return {"single": t.encode("one two").ids, "pair": pair.ids, "segments": pair.type_ids}


RULES = {"ﬁ": "fi", "㎏": "kg", "Ｆ": "F", "ｕ": "u", "ｌ": "l", "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u00a0": " ", "e\u0301": "é", "…": "...", "\u200b": ""}


def unigram(tmp):
    """SentencePiece's model, and the tokenizer.json that transformers makes of it for XLM-R."""
    with open(tmp, "w") as f:
        for a, b in RULES.items():
            f.write(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n")
    blob = io.BytesIO()
    lines = [line for text in TEXTS * 4 for line in text.split("\n") if line.strip() and "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=blob, vocab_size=420, hard_vocab_limit=False, model_type="unigram", character_coverage=0.98,
        normalization_rule_tsv=tmp, minloglevel=3,
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(blob.getvalue())
    pieces = [[p.piece, p.score] for p in proto.pieces]
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    special = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, c in enumerate(["<unk>", "<s>", "</s>"])]  # fmt: skip
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True},
        "decoder": space, "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }  # fmt: skip
    t = Tokenizer.from_str(json.dumps(file))
    native = sentencepiece.SentencePieceProcessor(model_proto=blob.getvalue())
    same = sum(native.encode(x) == i for x, i in zip(TEXTS, ids(t)))
    print(f"sentencepiece agrees in {same} of {len(TEXTS)} texts", file=sys.stderr)
    return {"json": file, "types": [p.type for p in proto.pieces], "ids": ids(t), **framed(t)}


spelled = byte_level()
out = {
    "texts": TEXTS, "byte_level": spelled, "ranks": ranks(spelled), "gemma": gemma(),
    "word_piece": [word_piece(True), word_piece(False)], "unigram": unigram("/tmp/rules.tsv"),
}  # fmt: skip
json.dump(out, sys.stdout, ensure_ascii=False, separators=(",", ":"))
