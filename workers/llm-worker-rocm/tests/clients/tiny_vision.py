"""Tiny models that see or hear, with random weights: those that tests/families compares with transformers."""

import base64
import json
import math
import struct
import zlib
from pathlib import Path

CASES = Path(__file__).parents[1] / "families/transformers"
CASE = json.loads((CASES / "qwen2.5-vl.json").read_text())
HEARING = json.loads((CASES / "qwen2-audio.json").read_text())
# The same model with a video.
VIDEO = json.loads((CASES / "qwen2.5-vl-video.json").read_text())
CASE["spelled"] = VIDEO["spelled"]
LETTERS = ["<pad>", "<s>", "</s>", "Ġ", *"abcdefghijklmnopqrstuvwxyz", *(f"<{i}>" for i in range(30, 40))]
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif p.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
HEARING_TEMPLATE = TEMPLATE.replace("'image'", "'audio'").replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|audio_bos|><|AUDIO|><|audio_eos|>"
)


def numbers(name, count):
    """Those of tests/families/transformers/generate.py."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    for i in range(count):
        x = (i * 2654435761 + seed) % 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        yield (x ^ (x >> 16)) / 2**31 - 1.0


def weight(name, shape, norm):
    if len(shape) > 1:
        scale, center = 1.7 / math.sqrt(shape[-1]), 0.0
    elif "norm" in name and name.endswith("weight"):
        scale, center = 0.3, norm
    else:
        scale, center = 0.2, 0.0
    values = [center + scale * x for x in numbers(name, math.prod(shape))]
    return struct.pack(f"<{len(values)}f", *values)


def write(folder, case=CASE, template=TEMPLATE):
    """Writes the model's folder."""
    header, data = {}, b""
    for name, shape in case["tensors"].items():
        part = weight(name, shape, case["norm"])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    spelled = [case["spelled"].get(str(i), text) for i, text in enumerate(LETTERS)]
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": spelled[i], **special} for i in [0, 1, 2, *range(30, 40)]]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(spelled)}, "merges": []}
    tokenizer = {"model": model, "added_tokens": added, "pre_tokenizer": bytes_of, "decoder": bytes_of}
    for name, content in {
        "config.json": case["config"],
        "preprocessor_config.json": case["processor"],
        "video_preprocessor_config.json": VIDEO["video_processor"],
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"chat_template": template},
    }.items():
        (folder / name).write_text(json.dumps(content))


def video():
    """The frames of the video's case, and how many of them are a second."""
    total, fps, indices = VIDEO["video"]
    frames = [picture(5 * index).split(",")[1] for index in indices]
    return "data:video/jpeg;base64," + ",".join(frames), len(indices) / total * fps


def picture(shift=0):
    """The case's picture as a PNG file's data URL."""
    width, height = CASE["picture"]
    value = lambda x, y, c: (x * 7 + y * 13 * (c + 1) + (x * y) % 31 * 3 + shift) % 256
    lines = (b"\0" + bytes(value(x, y, c) for x in range(width) for c in range(3)) for y in range(height))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"".join(lines))), chunk(b"IEND", b"")]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def sound():
    """The case's sound as a WAV file in base64."""
    tone = lambda t: (t * (300 + t // 64) // 37) % 400 - 200
    noise = lambda t: (t * t * 7 + t * 131) % 2003 - 1001
    samples = [tone(t) * 60 + noise(t) * 8 for t in range(HEARING["sound"])]
    data = struct.pack(f"<{len(samples)}h", *samples)
    head = struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    body = b"WAVEfmt " + head + b"data" + struct.pack("<I", len(data)) + data
    return base64.b64encode(b"RIFF" + struct.pack("<I", len(body)) + body).decode()


def words(tokens):
    """The text of some tokens."""
    return "".join(LETTERS[token].replace("Ġ", " ") for token in tokens)
