"""Writes the reference numbers beside this file: logits of tiny models by Hugging Face transformers.

    pip install torch transformers safetensors numpy peft
    python generate.py [CASE ...]

A weight is a hash of its name and place (`numbers`), which the test computes, too: a file holds the configuration, the names and shapes
of the checkpoint's tensors, and the logits behind some of the tokens.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import AutoModelForMultimodalLM, AutoModelForSequenceClassification, AutoModelForSpeechSeq2Seq
from transformers import Gemma3nAudioFeatureExtractor, GenerationConfig, WhisperFeatureExtractor
from transformers.modeling_layers import MtpModel
from transformers.video_utils import VideoMetadata

from cases import ADAPTERS, CASES, EMBEDDINGS, HEADS, PICTURES, PIECE, RANKINGS, SOUNDS, SPEECH, VIDEOS
from cases.pictures import spell
from numbers_of import ROWS, TOKENS, numbers, rounded, weight

HERE = pathlib.Path(__file__).parent
# What follows from the configuration, and is in no checkpoint of the models' makers.
DERIVED = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"]


def checkpoint(config, norm, folder, kind):
    """Writes a folder of the model, with weights of `numbers`; gives names and shapes."""
    (folder / "config.json").write_text(json.dumps(config))
    made = kind.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as other:
        made.save_pretrained(other)
        with safe_open(pathlib.Path(other) / "model.safetensors", "np") as file:
            names = [name for name in sorted(file.keys()) if name.rsplit(".")[-1] not in DERIVED]
            shapes = {name: file.get_slice(name).get_shape() for name in names}
    weights = {name: weight(name, shape, norm) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return shapes


def generate(name):
    config, norm = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForCausalLM)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
    write(name, config, norm, shapes, [[row, rounded(logits[row])] for row in ROWS])


def generate_embedding(name):
    (config, norm), pooling = EMBEDDINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModel)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        rows = []
        for count in (24, 1, 9):
            with torch.no_grad():
                hidden = model(torch.tensor([TOKENS[:count]])).last_hidden_state[0]
            vector = hidden[-1] if pooling == "last" else hidden.mean(0)
            rows.append([count, rounded(vector / vector.norm())])
    write(name, config, norm, shapes, rows)


def generate_ranking(name):
    config, norm = RANKINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        kind = AutoModelForSequenceClassification
        shapes = checkpoint(config, norm, folder, kind)
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        rows = []
        for first, count in ((5, 24), (2, 3), (4, 15)):
            inputs = {"input_ids": torch.tensor([TOKENS[:count]])}
            if config.get("type_vocab_size", 1) > 1:
                inputs["token_type_ids"] = torch.tensor([[0] * first + [1] * (count - first)])
            with torch.no_grad():
                logits = model(**inputs).logits[0]
            rows.append([first, count, rounded(torch.sigmoid(logits))])
    write(name, config, norm, shapes, rows)


def picture(width, height, shift=0):
    """Pixels of a formula, which the test has, too."""
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return ((x * 7 + y * 13 * (c + 1) + (x * y) % 31 * 3 + shift) % 256).astype(np.uint8)


def in_patches(pixels, patch):
    """Pixels of tiles `(tiles, 3, height, width)` as patches, line by line."""
    tiles, _, height, width = pixels.shape
    pixels = pixels.reshape(tiles, 3, height // patch, patch, width // patch, patch)
    return pixels.permute(0, 2, 4, 1, 3, 5).flatten()


def answered(model, prompt, inputs, typed):
    """Tokens behind a prompt with their logarithms of probability; `typed` is the name of what kinds tokens are of."""
    answer, tokens = [], list(prompt)
    # The tokens of pictures and videos end an answer: behind them, one more would be needed.
    while len(answer) < 8 and not {31, 32} & set(tokens[len(prompt) :]):
        ids = torch.tensor([tokens])
        more = {typed: (ids == 31).int() + 2 * (ids == 32).int()} if typed else {}
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False, **inputs, **more).logits[0, -1]
        token = int(logits.argmax())
        answer.append([token, round(float(logits.log_softmax(-1)[token]), 6)])
        tokens.append(token)
    return answer


def generate_video(name):
    base, settings, kind, (total, fps), (width, height), sizes = VIDEOS[name]
    config, norm, (of_pictures, _), _, (_, spelled) = PICTURES[base]
    config = {**config, "text_config": {**config["text_config"], "max_position_embeddings": 512}}
    is_qwen = base.startswith("qwen")
    processor = getattr(transformers, kind)(**settings)
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    asked = {"fps": 2.0 if is_qwen else 1.0, "num_frames": 64 if base == "smolvlm" else None}
    indices = [int(i) for i in processor.sample_frames(metadata, **asked)]
    frames = []
    for index in indices:
        frame = Image.fromarray(picture(width, height, 5 * index))
        for size in sizes:
            frame = frame.resize(size, Image.Resampling.LANCZOS if base == "smolvlm" else Image.Resampling.BICUBIC)
        frames.append(np.asarray(frame))
    inputs = processor(videos=[np.stack(frames)], do_resize=is_qwen, do_sample_frames=False, return_tensors="pt")
    patch = config["vision_config"]["patch_size"]
    patch = patch[0] if isinstance(patch, list) else patch
    words = [3 + i * 7 % 26 for i in range(24)]
    if is_qwen:
        inputs = {key: inputs[key] for key in ("pixel_values_videos", "video_grid_thw")}
        times, rows, columns = inputs["video_grid_thw"][0].tolist()
        assert (columns * patch, rows * patch) == sizes[-1], "the processor has another size in mind"
        flat = inputs["pixel_values_videos"].reshape(times, rows * columns, 3, 2, patch * patch)
        flat = flat.permute(0, 3, 1, 2, 4).flatten()
        count = rows * columns // 4
        if base in ("qwen2-vl", "qwen2.5-vl"):
            place = [33] + [32] * (times * count) + [34]
        else:
            seconds = [index / fps for index in indices + indices[-1:] * (len(indices) % 2)]
            middle = [(a + b) / 2 for a, b in zip(seconds[::2], seconds[1::2])]
            place = [t for time in middle for t in [*spell(f"<{time:.1f} seconds>"), 33, *[32] * count, 34]]
        if base == "qwen2.5-vl":
            inputs["second_per_grid_ts"] = [2 / (len(indices) / total * fps)]
    else:
        pixels = inputs["pixel_values" if base == "smolvlm" else "pixel_values_videos"]
        inputs = {"pixel_values": pixels if base == "smolvlm" else pixels.flatten(0, 1)}
        flat = in_patches(pixels.flatten(0, -4), patch)
        count = (16 // patch // 2) ** 2
        number = {2: "two", 3: "three"}[len(indices)]
        if base == "smolvlm":
            place = spell(f"You are provided the following series of {number} frames from a 0:00:02 [H:MM:SS] video.")
            for _ in indices:
                place += [*spell("Frame from 00:01:"), 32, 35, *[31] * count, 32]
        else:
            place = [t for _ in indices for t in [*spell("Frame: "), 33, *[31] * count, 34]]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForImageTextToText)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        features = getattr(model.model, "get_video_features" if is_qwen else "get_image_features")
        features = features(**{k: v for k, v in inputs.items() if k != "second_per_grid_ts"}).pooler_output
        features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
        features = features.reshape(-1, features.shape[-1]).detach()
        prompt = words[:3] + place + words[3:12]
        answer = answered(model, prompt, inputs, "mm_token_type_ids" if is_qwen else None)
    every = max(len(flat) // 40, 1)
    spelled = {**spelled, 32: "<|video_pad|>"} if is_qwen else spelled
    more = {
        "processor": of_pictures,
        "video_processor": settings,
        "picture": [width, height],
        "video": [total, fps, indices],
        "spelled": spelled,
        "prompt": prompt,
        "pixels": [len(flat), every, rounded(flat[::every])],
        "features": [rounded(features[row]) for row in (0, len(features) // 2, len(features) - 1)],
        "answer": answer,
    }
    write(name, config, norm, shapes, [], **more)


def generate_picture(name):
    config, norm, (settings, kind), (width, height), (place, spelled) = PICTURES[name]
    processor = getattr(transformers, kind)(**settings)
    merge = config.get("spatial_merge_size", 1)
    if merge > 1:
        # As the processor of pictures and text calls it.
        side = settings["patch_size"]["height"] * merge
        processor.patch_size = {"height": side, "width": side}
    inputs = dict(processor(images=[Image.fromarray(picture(width, height))], return_tensors="pt"))
    # The mask of a picture that is not padded.
    inputs.pop("pixel_attention_mask", None)
    inputs.pop("num_patches", None)
    inputs.pop("num_soft_tokens_per_image", None)
    pixels = inputs["pixel_values"]
    is_qwen = "image_grid_thw" in inputs
    patch = config["vision_config"]["patch_size"]
    patch = patch[0] if isinstance(patch, list) else patch
    if is_qwen:
        flat = pixels.reshape(len(pixels), 3, 2, patch * patch)[:, :, 0].flatten()
    elif "image_position_ids" in inputs:
        # Without padding, and from -1 to 1, which the model does.
        count = int((inputs["image_position_ids"] >= 0).all(-1).sum())
        flat = (2 * pixels[0, :count] - 1).reshape(count, patch * patch, 3).transpose(1, 2).flatten()
    else:
        flat = in_patches(pixels.flatten(0, -4), patch)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForImageTextToText)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        features = model.model.get_image_features(**inputs).pooler_output
        features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
        features = features.reshape(-1, features.shape[-1]).detach()
        parts = sum(token is None for token in place)
        inner = [31] * (len(features) // parts)
        words = [3 + i * 7 % 26 for i in range(24)]
        begin = words[:3] + [t for token in place for t in (inner if token is None else [token])]
        prompt = begin + words[3:12]
        typed = {"gemma3": "token_type_ids", "gemma4": "mm_token_type_ids"}
        answer = answered(model, prompt, inputs, typed.get(config["model_type"], "mm_token_type_ids" * is_qwen))
    every = max(len(flat) // 40, 1)
    more = {
        "processor": {**settings, "image_processor_type": kind.removesuffix("Pil")},
        "picture": [width, height],
        "spelled": spelled,
        "prompt": prompt,
        "pixels": [len(flat), every, rounded(flat[::every])],
        "features": [rounded(features[row]) for row in (0, len(features) // 2, len(features) - 1)],
        "answer": answer,
    }
    write(name, config, norm, shapes, [], **more)


def sound(count):
    """Tones that rise and swell, with some noise, 16000 numbers a second."""
    i = np.arange(count)
    tones = 0.3 * np.sin(0.02 * i * (1 + i / 40000)) * (i % 6000) / 6000
    return (tones + 0.05 * numbers("sound", count)).astype(np.float32)


def generate_speech(name):
    """Features, rows of the encoder, logits, and what five seconds say, window after window."""
    config, norm, settings = SPEECH[name]
    window = 2 * config["max_source_positions"]
    samples = sound(80000)
    extractor = WhisperFeatureExtractor(feature_size=config["num_mel_bins"], chunk_length=window // 100)
    # In f64, not by torch in f32; silence follows, as in OpenAI's program.
    padded = np.concatenate([samples, np.zeros(window * 160, np.float32)])
    features = extractor._np_extract_fbank_features(padded[None], "cpu")[0].astype(np.float32)
    universal = Gemma3nAudioFeatureExtractor()([samples[:16000]], return_tensors="np")["input_features"][0]
    frames = len(samples) // 160

    def segment(input_features, seek, seek_num_frames, num_segment_frames, cur_bsz, batch_idx_map):
        """What lies behind the end is what lies there, not zeros."""
        assert cur_bsz == 1
        start = int(seek[0])
        return torch.tensor(features)[None, :, start : start + num_segment_frames]

    tokens = [config["decoder_start_token_id"], 29, 32, 40, 7, 11, 2, 19, 50, 50]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForSpeechSeq2Seq)
        model = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        model.generation_config = GenerationConfig(**settings)
        first = torch.tensor(features)[None, :, :window]
        with torch.no_grad():
            rows = model.model.encoder(first).last_hidden_state[0]
            logits = model(input_features=first, decoder_input_ids=torch.tensor([tokens])).logits[0]
            language = int(model.detect_language(first, generation_config=GenerationConfig(**settings))[0])
            model._get_input_segment = segment
            said = model.generate(
                torch.tensor(features)[None, :, :frames],
                return_timestamps=True,
                return_segments=True,
                task="transcribe",
                temperature=(0.0,),
                condition_on_prev_tokens=True,
                max_new_tokens=24,
            )
    segments = []
    for part in said["segments"][0]:
        own = part["tokens"].tolist()
        # The last of a window has the time that begins the next one, too.
        if len(own) > 2 and own[-1] >= 37 and own[-2] >= 37:
            own = own[:-1]
        segments.append([round(float(part["start"]), 3), round(float(part["end"]), 3), own])
    more = {
        "settings": settings,
        "samples": len(samples),
        "features": [[frame, rounded(features[:, frame])] for frame in (0, 57, 199, frames - 1, frames + 1)],
        "universal": [[frame, rounded(universal[frame])] for frame in (0, 50, 96)],
        "encoded": [[row, rounded(rows[row])] for row in (0, 49, 99)],
        "tokens": tokens,
        "language": language,
        "segments": segments,
    }
    write(name, config, norm, shapes, [[row, rounded(logits[row])] for row in range(len(tokens))], **more)


def sound_of_16_bits(count):
    """16-bit samples of a formula, which the test has, too."""
    t = np.arange(count, dtype=np.int64)
    tone = (t * (300 + t // 64) // 37) % 400 - 200
    noise = (t * t * 7 + t * 131) % 2003 - 1001
    return ((tone * 60 + noise * 8) / 32768.0).astype(np.float32)


def generate_sound(name):
    config, norm, (settings, kind), count, (place, spelled) = SOUNDS[name]
    extractor = getattr(transformers, kind)(**settings)
    samples = sound_of_16_bits(count)
    if name == "voxtral":
        # As its processor does: whole pieces.
        made = extractor(samples, sampling_rate=16000, padding=True, truncation=False, pad_to_multiple_of=PIECE)
        mel = np.asarray(made["input_features"][0])
        pieces = mel.reshape(len(mel), -1, PIECE // 160).transpose(1, 0, 2)
        inputs = {"input_features": torch.tensor(np.ascontiguousarray(pieces))}
        counts = mel.T
    elif kind.startswith("Gemma"):
        made = extractor([samples], return_tensors="pt")
        mask = made["input_features_mask"].bool()
        inputs = {"input_features": made["input_features"], "input_features_mask": mask}
        counts = made["input_features"][0][mask[0]].numpy()
    else:
        made = extractor(
            samples, sampling_rate=16000, padding="max_length", max_length=PIECE, return_attention_mask=True
        )
        mask = torch.tensor(np.asarray(made["attention_mask"]))
        inputs = {"input_features": torch.tensor(np.asarray(made["input_features"])), "feature_attention_mask": mask}
        counts = np.asarray(made["input_features"][0]).T[: int(mask.sum())]
    if name == "gemma3n-audio":
        blind_gemma()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForMultimodalLM)
        model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        features = rows_of_sound(model, name, inputs)
        own = config.get("audio_token_id", config.get("audio_token_index"))
        inner = [own] * len(features)
        if name == "gemma3n-audio":
            # The end has an embedding of the encoder's.
            inner[-1] = config["eoa_token_id"]
        words = [3 + i * 7 % 26 for i in range(24)]
        begin = words[:3] + [t for token in place for t in (inner if token is None else [token])]
        prompt = begin + words[3:12]
        answer, tokens = [], list(prompt)
        # A token of sounds ends an answer: behind it, one more sound would be needed.
        first = 30 if name == "gemma3n-audio" else 31
        last = 39 if name == "gemma3n-audio" else 31
        while len(answer) < 8 and not any(first <= token <= last for token in tokens[len(prompt) :]):
            ids = torch.tensor([tokens])
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs)
            logits = logits.logits[0, -1]
            token = int(logits.argmax())
            answer.append([token, round(float(logits.log_softmax(-1)[token]), 6)])
            tokens.append(token)
    lengths = {} if kind.startswith("Gemma") else {"n_samples": PIECE, "nb_max_frames": PIECE // 160}
    flat = torch.tensor(np.ascontiguousarray(counts)).flatten()
    every = max(len(flat) // 40, 1)
    more = {
        "processor": {**settings, **lengths, "feature_extractor_type": kind},
        "sound": count,
        "spelled": spelled,
        "prompt": prompt,
        "mel": [len(flat), every, rounded(flat[::every])],
        "features": [rounded(features[row]) for row in (0, len(features) // 2, len(features) - 1)],
        "answer": answer,
    }
    write(name, config, norm, shapes, [], **more)


def blind_gemma():
    """Gemma 3n's model without its encoder of pictures, which is a library's of its own."""
    from transformers.models.gemma3n import modeling_gemma3n

    made = modeling_gemma3n.AutoModel.from_config

    def from_config(config, **more):
        return torch.nn.Identity() if config.model_type == "gemma3n_vision" else made(config, **more)

    modeling_gemma3n.AutoModel.from_config = from_config


def rows_of_sound(model, name, inputs):
    """What stands in for the embeddings of the sound's tokens."""
    with torch.no_grad():
        if name == "qwen2-audio":
            # The model has no function of its own for it; its rows are those that its text part gets.
            got = {}
            hook = model.model.multi_modal_projector.register_forward_hook(lambda *x: got.update(rows=x[2]))
            ids = torch.tensor([[31, 5]])
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs)
            hook.remove()
            frames = int(inputs["feature_attention_mask"].sum())
            return got["rows"][0][: (((frames - 1) // 2 + 1) - 2) // 2 + 1]
        whole = model if hasattr(model, "get_audio_features") else model.model
        if name == "gemma3n-audio":
            inputs = {**inputs, "input_features_mask": ~inputs["input_features_mask"]}
        made = whole.get_audio_features(**inputs)
        if name == "gemma4-audio":
            return made.pooler_output[made.attention_mask]
        if name == "gemma3n-audio":
            rows = made.pooler_output[0]
            embedded = lambda token: whole.embed_audio(input_ids=torch.tensor([[token]]))[0]
            padding = embedded(model.config.text_config.vocab_size - 1)
            missing = model.config.audio_soft_tokens_per_image - len(rows)
            return torch.cat([rows, padding.expand(missing, -1), embedded(model.config.eoa_token_id)])
        return made.last_hidden_state if name == "qwen2.5-omni" else made.pooler_output


def generate_adapters(name):
    """Logits with each adapter alone, and with both."""
    from peft import LoraConfig, get_peft_model

    base, adapters = ADAPTERS[name]
    config, norm = CASES[base]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForCausalLM)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        described = {}
        for adapter, settings in adapters.items():
            lora = LoraConfig(task_type="CAUSAL_LM", **settings)
            if not described:
                model = get_peft_model(model, lora, adapter)
            else:
                model.add_adapter(adapter, lora)
            # Not the model's own ends beside their adapters.
            model.save_pretrained(folder / "peft", selected_adapters=[adapter], save_embedding_layers=False)
            with safe_open(folder / "peft" / adapter / "adapter_model.safetensors", "np") as file:
                own = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
            own_config = json.loads((folder / "peft" / adapter / "adapter_config.json").read_text())
            keep = [*settings, "peft_type", "bias", "use_dora", "modules_to_save", "fan_in_fan_out", "rank_pattern"]
            own_config = {key: own_config[key] for key in keep}
            own_config["target_modules"] = sorted(own_config["target_modules"])
            described[adapter] = {"config": own_config, "tensors": own}
            for key, shape in own.items():
                inner = key.removesuffix(".weight")
                parameter = model.get_parameter(f"{inner}.{adapter}{key.removeprefix(inner)}")
                parameter.data = torch.tensor(weight(f"{adapter} {key}", shape, norm))
        model.eval()
        rows = {}
        for chosen in ([*([adapter] for adapter in adapters), list(adapters)]):
            model.base_model.set_adapter(chosen)
            with torch.no_grad():
                logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
            rows["+".join(chosen)] = [[row, rounded(logits[row])] for row in ROWS]
    write(name, config, norm, shapes, rows, adapters=described)


class First(torch.nn.Module):
    """A layer that may give more than its output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        given = self.layer(*args, **kwargs)
        return given[0] if isinstance(given, tuple) else given


def head_name(name, layers, kind):
    """A tensor of the layers behind so many, by the name that checkpoints have for it."""
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    if kind == "layers":
        return name
    shared = {
        "eh_proj.weight": "fc.weight",
        "enorm.weight": "pre_fc_norm_embedding.weight",
        "hnorm.weight": "pre_fc_norm_hidden.weight",
        "shared_head.norm.weight": "norm.weight",
    }
    return f"mtp.{shared.get(part, f'layers.{int(layer) - layers}.{part}')}"


def deeper(config, count):
    """The configuration of a model with so many layers more, as heads have them."""
    layers = config["num_hidden_layers"]
    config = {**config, "num_hidden_layers": layers + count}
    for key, kind in (("layer_types", "full_attention"), ("indexer_types", "full"), ("mlp_layer_types", "sparse")):
        if key in config:
            config[key] = [*config[key], *[kind] * count]
    if "linear_num_key_heads" in config and "layer_types" not in config:
        kinds = [("linear_attention", "full_attention")[(i + 1) % 4 == 0] for i in range(layers)]
        config["layer_types"] = [*kinds, *["full_attention"] * count]
    return {key: value for key, value in config.items() if "num_nextn" not in key}


def generate_heads(name):
    """Logits of heads, each behind the tokens that come next: row `i` of head `k` begins with the model's hidden state
    at `i` and reads token `i + k + 1`."""
    base, settings, count, kind = HEADS[name]
    config, norm = CASES[base]
    config = {**config, **settings}
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    with tempfile.TemporaryDirectory() as folder:
        # Layers of heads are those of a deeper model.
        folder = pathlib.Path(folder)
        shapes = checkpoint(deeper(config, count), norm, folder, AutoModelForCausalLM)
        is_head = lambda tensor: tensor.startswith("model.layers.") and int(tensor.split(".")[2]) >= layers
        for k in range(count):
            own = {"eh_proj.weight": [width, 2 * width], **{f"{n}.weight": [width] for n in ("enorm", "hnorm", "shared_head.norm")}}
            shapes |= {f"model.layers.{layers + k}.{part}": shape for part, shape in own.items()}
        named = {tensor: head_name(tensor, layers, kind) if is_head(tensor) else tensor for tensor in shapes}
        weights = {tensor: weight(named[tensor], shape, norm) for tensor, shape in shapes.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    text = model.config.get_text_config()
    text.num_hidden_layers = layers
    text.num_mtp_layers = count
    text.mtp_layer_types = ["full_attention"] * count if getattr(text, "layer_types", None) else None
    text.mtp_mlp_layer_types = ["sparse"] * count if getattr(text, "mlp_layer_types", None) else None
    types, mlp_types = getattr(text, "layer_types", None), getattr(text, "mlp_layer_types", None)
    for key, list_of in (("layer_types", types), ("mlp_layer_types", mlp_types)):
        if list_of:
            setattr(text, key, list_of[:layers])
    # Whose last layer is one of a head.
    heads = MtpModel(model, count).to(torch.float32).eval()
    own = list(model.model.layers)
    model.model.layers = torch.nn.ModuleList(own[:layers])
    for k, layer in enumerate(heads.layers):
        layer.mtp_block = First(own[layers + k])
        for module, part in ((layer.eh_proj, "eh_proj"), (layer.enorm, "enorm"), (layer.hnorm, "hnorm"), (layer.post_norm, "shared_head.norm")):
            module.weight.data = torch.tensor(weights[f"model.layers.{layers + k}.{part}.weight"])
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        outputs = model(tokens, use_cache=False, output_hidden_states=True)
        hidden = outputs.hidden_states[-1]
        assert torch.allclose(model.lm_head(hidden), outputs.logits, atol=1e-5), "behind the last norm"
        rows = []
        for k in range(count):
            left = len(TOKENS) - 1 - k
            ids, places = tokens[:, k + 1 :], torch.arange(k + 1, len(TOKENS))[None]
            hidden = heads.forward_layer(k, hidden[:, :left], places, None, input_ids=ids)
            logits = heads._project_to_logits(hidden)[0]
            rows.append([[row, rounded(logits[row])] for row in (0, 9, left - 1)])
    shapes = {named[tensor]: shape for tensor, shape in shapes.items()}
    write(name, config, norm, dict(sorted(shapes.items())), rows)


def write(name, config, norm, shapes, rows, **more):
    text = json.dumps({"config": config, "norm": norm, "tensors": shapes, "rows": rows, **more})
    # A line for each tensor and row.
    text = text.replace('], "', '],\n"').replace("]], [", "]],\n[").replace(', "tensors"', ',\n"tensors"')
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    everything = [*CASES, *EMBEDDINGS, *RANKINGS, *PICTURES, *VIDEOS, *SPEECH, *SOUNDS, *ADAPTERS, *HEADS]
    for name in sys.argv[1:] or everything:
        if name in CASES:
            generate(name)
        elif name in EMBEDDINGS:
            generate_embedding(name)
        elif name in PICTURES:
            generate_picture(name)
        elif name in SOUNDS:
            generate_sound(name)
        elif name in VIDEOS:
            generate_video(name)
        elif name in RANKINGS:
            generate_ranking(name)
        elif name in SPEECH:
            generate_speech(name)
        elif name in HEADS:
            generate_heads(name)
        else:
            generate_adapters(name)
        print(name, flush=True)
