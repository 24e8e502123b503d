"""Small models in place of those that llama.cpp's tests fetch from a hub.

The one that tells stories has a vocabulary whose counts of tokens are those that the tests ask for (vocabulary.txt),
and a head that likes some words, each behind another; its layers are random. It learned nothing.
"""

import base64
import json
import os
import struct
import sys
from pathlib import Path

import numpy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import tiny_vision  # noqa: E402

HIDDEN, FORWARD, HEADS, KV_HEADS, LAYERS = 128, 128, 4, 2, 2
CONTEXT = 8192
END = 2
# The words that it says, each mostly behind the one before it.
WORDS = (
    "going bed princesses everyone kids Anna forest little girl Ann small shiny Daddy Jimmy Dad excited park Whiskers "
    "said Jack Flana wise kind owl answer Suddenly Aside felter climb leaf friends step sky very bright day big house"
).split()
# What it says instead with so much of its adapter.
ADAPTED = {0.3: "special thing gifted", 0.7: "far from home away", 1.0: "eye love glass sun"}
# The one that comes behind some other tokens.
AFTER = {"s": "going", "d": "forest", "o": "little", "?": "Whiskers", "<0x0A>": "Suddenly", "_": "Jimmy", "▁a": None}
MARKS = ["<FIM_PRE>", "<FIM_SUF>", "<FIM_MID>"]
# How much likelier a word is than the other words behind the one before it, and behind what ends a prompt; and how much
# likelier all words are than anything else.
NEXT, FIRST, SAID = 2.2, 6.0, 14.0
# How much likelier words of the nearest part of the adapter are than those of others, for a distance of 1.
NEARER = 12.0


# GGUF, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def encoded(value):
    """A value of metadata with its type's number."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kind, form = (8, None) if isinstance(value[0], str) else (6, "f") if isinstance(value[0], float) else (5, "i")
    items = b"".join(text(item) if form is None else struct.pack(f"<{form}", item) for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items


def write_gguf(path, metadata, tensors):
    """Matrices have one row for each output."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + encoded(value) for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += tensor.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)


# The model that tells stories.

def vocabulary(more=()):
    """Pieces with kinds: 2 unknown, 3 control, 6 a byte, 1 text; earlier text is merged first."""
    merged = [*more, *(HERE / "vocabulary.txt").read_text().split()]
    letters = ["▁", *map(chr, range(33, 127))]
    plain = [*merged, *letters, *(f"▁{word}" for word in [*WORDS, *" ".join(ADAPTED.values()).split()])]
    plain = [piece for index, piece in enumerate(plain) if piece not in plain[:index]]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain, *MARKS]
    return pieces, [2, 3, 3, *[6] * 256, *[1] * len(plain), *[3] * len(MARKS)]


def story(path, more=(), infill=False, seed=1, noise=0.0, parts=1):
    """Writes the model, in so many parts; `more` pieces are merged before all others."""
    pieces, kinds = vocabulary(more)
    random = numpy.random.default_rng(seed)
    ids = {piece: index for index, piece in enumerate(pieces)}
    size = len(pieces)
    # Of each vector the first number is the same: what the head reads of it is a bias. The second number is how much
    # there is of the adapter. The others tell tokens apart.
    embedding = random.standard_normal((size, HIDDEN))
    embedding[:, :2] = 0
    embedding /= numpy.linalg.norm(embedding, axis=1, keepdims=True)
    embedding[:, 0] = 1
    # A norm makes them longer by this.
    longer = (HIDDEN / 2) ** 0.5
    said = [ids[f"▁{word}"] for word in WORDS]
    groups = [said, *([ids[f"▁{word}"] for word in words.split()] for words in ADAPTED.values())]
    followers = {before: (NEXT, after) for group in groups for before, after in zip(group, group[1:] + group[:1])}
    for piece, word in AFTER.items():
        followers[ids[piece]] = (FIRST, ids[f"▁{word}"]) if word else (0, said[0])
    # The head that gives exactly these numbers for these tokens.
    wanted = numpy.zeros((size, len(followers)))
    for column, (gain, after) in enumerate(followers.values()):
        wanted[after, column] = gain
    head = numpy.zeros((size, HIDDEN))
    head[:, 2:] = wanted @ numpy.linalg.pinv(embedding[list(followers), 2:].T)
    head[:, 0] = -SAID
    head[END, 0] *= 2
    head[said, 0] = 0
    # Of these lines over the part of the adapter the highest is that of the nearest part.
    for part, group in zip(ADAPTED, groups[1:]):
        head[group, 0] = -NEARER * part**2
        head[group, 1] = 2 * NEARER * part
    head /= longer
    tensors = {"token_embd.weight": embedding, "output.weight": head, "output_norm.weight": numpy.ones(HIDDEN)}
    wide = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (wide, HIDDEN),
        "attn_v": (wide, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FORWARD, HIDDEN),
        "ffn_up": (FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FORWARD),
    }
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = numpy.ones(HIDDEN)
        for name, shape in shapes.items():
            matrix = random.standard_normal(shape) / HIDDEN**0.5
            if name in ("attn_output", "ffn_down"):
                # What came before changes what is said, but not much.
                matrix *= 0.05
                matrix[:2] = 0
            tensors[f"blk.{layer}.{name}.weight"] = matrix
    # What the adapter adds to the values goes into the second number.
    first = "blk.0.attn_output.weight"
    tensors["blk.0.attn_v.weight"][0] = 0
    for query in range(HEADS // KV_HEADS):
        tensors[first][:, query * HIDDEN // HEADS] = 0
    tensors[first][1, 0] = 1
    if noise:
        tensors["output.weight"] = head + random.standard_normal(head.shape) * noise * numpy.abs(head).mean()
    metadata = {
        "general.architecture": "llama",
        "general.name": path.stem,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [float(-index) for index in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    if infill:
        for key, mark in zip(("prefix", "suffix", "middle"), MARKS):
            metadata[f"tokenizer.ggml.{key}_token_id"] = ids[mark]
    names = list(tensors)
    for part in range(parts):
        own = names[part * len(names) // parts : (part + 1) * len(names) // parts]
        own_path = path if parts == 1 else path.with_name(f"{path.stem}-{part + 1:05}-of-{parts:05}.gguf")
        write_gguf(own_path, metadata if part == 0 else {}, {name: tensors[name] for name in own})


def adapter(path):
    """Writes an adapter of the model: it adds to a value what the first number, which is always the same, is."""
    reads, adds = numpy.zeros((1, HIDDEN)), numpy.zeros((KV_HEADS * HIDDEN // HEADS, 1))
    reads[0, 0], adds[0, 0] = 1, (2 / HIDDEN) ** 0.5
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 1.0,
    }
    write_gguf(path, metadata, {"blk.0.attn_v.weight.lora_a": reads, "blk.0.attn_v.weight.lora_b": adds})


# The model that sees: one of those that tests/families compares with transformers, with a vocabulary of bytes.

SEEING_CONTEXT = 4096
# One token of several letters.
WORD = " hello"


def seeing(folder):
    """Writes the model."""
    case = json.loads(json.dumps(tiny_vision.CASE))
    # Its own tokens come first; what of them is text elsewhere is nothing here.
    own = [case["spelled"].get(str(index), f"<{index}>") for index in range(40)]
    own[:3] = ["<pad>", "<s>", "</s>"]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(rest)}
    word = "".join(letters[byte] for byte in WORD.encode())
    # The last letters first, so that it is made from its end.
    merges = [f"{word[at]} {word[at + 1:]}" for at in range(len(word) - 2, -1, -1)]
    merged = [merge.replace(" ", "") for merge in merges]
    spelled = [*own, *letters.values(), *merged]
    size = len(spelled)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        case["tensors"][name][0] = size
    case["config"]["text_config"] |= {"vocab_size": size, "max_position_embeddings": SEEING_CONTEXT}
    folder.mkdir()
    tiny_vision.write(folder, case)
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {piece: index for index, piece in enumerate(spelled)}
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        "added_tokens": [{"id": index, "content": piece, **special} for index, piece in enumerate(own)],
        "pre_tokenizer": level,
        "decoder": level,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


# The model that scores documents.

SCORED = 32  # numbers in a vector of it


def ranker(path):
    """Writes a cross-encoder whose scores mean nothing. Its words are letters."""
    random = numpy.random.default_rng(4)
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*marks, *(f"▁{letter}" for letter in letters), *letters]
    tensors = {
        "token_embd.weight": (len(pieces), SCORED),
        "position_embd.weight": (512, SCORED),
        "token_types.weight": (2, SCORED),
        "token_embd_norm": None,
        "cls": (SCORED, SCORED),
        "cls.output": (1, SCORED),
        "blk.0.attn_output_norm": None,
        "blk.0.layer_output_norm": None,
        "blk.0.ffn_up": (2 * SCORED, SCORED),
        "blk.0.ffn_down": (SCORED, 2 * SCORED),
        **{f"blk.0.attn_{part}": (SCORED, SCORED) for part in ("q", "k", "v", "output")},
    }
    written = {}
    for name, shape in tensors.items():
        if name.endswith(".weight"):
            written[name] = random.standard_normal(shape)
            continue
        # Norms have as many numbers as vectors.
        weight = numpy.ones(SCORED) if shape is None else random.standard_normal(shape) / shape[1] ** 0.5
        written[f"{name}.weight"] = weight
        written[f"{name}.bias"] = random.standard_normal(SCORED if shape is None else shape[0]) * 0.1
    metadata = {
        "general.architecture": "bert",
        "bert.context_length": 512,
        "bert.embedding_length": SCORED,
        "bert.block_count": 1,
        "bert.feed_forward_length": 2 * SCORED,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-5,
        "bert.pooling_type": 4,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3] * len(marks) + [1] * (len(pieces) - len(marks)),
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
    }
    write_gguf(path, metadata, written)


# In the other model's vocabulary this is one token.
HELLO = ["▁H", "▁He", "ll", "llo", "▁Hello"]


def write_all(folder):
    """Writes all models."""
    story(folder / "story.gguf")
    story(folder / "infill.gguf", infill=True)
    story(folder / "large.gguf", more=HELLO)
    story(folder / "draft.gguf", more=HELLO, noise=0.5)
    ranker(folder / "ranker.gguf")
    story(folder / "split.gguf", parts=3)
    adapter(folder / "adapter.gguf")
    seeing(folder / "seeing")


def folder():
    return Path(os.environ["LLAMA_CPP_MODELS"])


def of_repository(repository, file):
    """The model in place of one on a hub."""
    known = {
        "ggml-org/test-model-stories260K": lambda: folder() / "story.gguf",
        "ggml-org/test-model-stories260K-infill": lambda: folder() / "infill.gguf",
        "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": lambda: folder() / "split-00001-of-00003.gguf",
        "ggml-org/tinygemma3-GGUF:Q8_0": lambda: folder() / "seeing",
        "ggml-org/stories15M_MOE": lambda: folder() / "large.gguf",
        "bert-bge-small/ggml-model-f16.gguf": lambda: os.environ["CANDLE_ROCM_MINILM"],
        "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": lambda: folder() / "ranker.gguf",
    }
    found = known.get(file) or known.get(repository)
    if not found:
        raise RuntimeError(f"no model of ours stands in for {repository} {file}")
    return found()


# Those that the suite has in a cache for its server of several models.
SEVERAL = {
    "ggml-org/tinygemma3-GGUF:Q8_0": "large.gguf",
    "ggml-org/test-model-stories260K:F32": "story.gguf",
    "ggml-org/test-model-stories260K-infill:F32": "infill.gguf",
}


def several():
    """A file that names them."""
    path = folder() / f"several-{os.getpid()}.toml"
    path.write_text("".join(f'[models."{name}"]\npath = "{file}"\n' for name, file in SEVERAL.items()))
    return path


def of_address(address):
    """The file in place of one on a hub."""
    known = {"stories15M-q4_0.gguf": "draft.gguf", "moe_shakespeare15M.gguf": "adapter.gguf"}
    name = address.rsplit("/", 1)[-1]
    if name not in known:
        raise RuntimeError(f"no file of ours stands in for {address}")
    return folder() / known[name]


def picture(address):
    """A picture in place of one on a hub; each address has its own."""
    data = tiny_vision.picture(sum(address.encode()) % 251)
    return base64.b64decode(data.split(",")[1])
