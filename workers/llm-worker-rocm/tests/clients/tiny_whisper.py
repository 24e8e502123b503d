"""A tiny Whisper with random weights: the one that tests/families compares with transformers."""

import json
import math
import struct
from pathlib import Path

from tiny_vision import numbers

CASE = json.loads((Path(__file__).parents[1] / "families/transformers/whisper.json").read_text())
NAMES = "endoftext startoftranscript en de translate transcribe startoflm startofprev nospeech notimestamps"


def weight(name, shape):
    if len(shape) > 1:
        scale, center = 1.7 / math.sqrt(shape[-1]), 0.0
    elif "norm" in name and name.endswith("weight"):
        scale, center = 0.3, CASE["norm"]
    else:
        scale, center = 0.2, 0.0
    values = [center + scale * x for x in numbers(name, math.prod(shape))]
    return struct.pack(f"<{len(values)}f", *values)


def write(folder):
    """Writes the model's folder."""
    header, data = {}, b""
    for name, shape in CASE["tensors"].items():
        part = weight(name, shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ"]
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    names = enumerate(NAMES.split(), len(letters))
    added = [{"id": i, "content": f"<|{name}|>", **special} for i, name in names]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(letters)}, "merges": []}
    tokenizer = {"model": model, "added_tokens": added, "pre_tokenizer": bytes_of, "decoder": bytes_of}
    for name, content in {
        "config.json": CASE["config"],
        "generation_config.json": CASE["settings"],
        "tokenizer.json": tokenizer,
    }.items():
        (folder / name).write_text(json.dumps(content))


def sound():
    """Two seconds of tones and noise as a WAV file of 16-bit numbers."""
    noise = numbers("noise", 32000)
    samples = [int(9000 * math.sin(0.03 * i) * (i % 5000) / 5000 + 1500 * x) for i, x in enumerate(noise)]
    data = struct.pack(f"<{len(samples)}h", *samples)
    form = struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data
