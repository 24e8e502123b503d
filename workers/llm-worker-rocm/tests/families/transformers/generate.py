"""Writes the reference numbers beside this file: logits of tiny models by Hugging Face transformers.

    pip install torch transformers safetensors numpy peft
    python generate.py [CASE ...]

A weight is a hash of its name and place (`numbers`), which the test computes, too: a file holds the configuration, the names and shapes
of the checkpoint's tensors, and the logits behind some of the tokens.
"""

import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from cases import ADAPTERS, CASES, EMBEDDINGS, RANKINGS

HERE = pathlib.Path(__file__).parent
TOKENS = [3 + i * 7 % 29 for i in range(24)]
ROWS = [0, 6, 13, 23]


def numbers(name, count):
    """Numbers from -1 to 1 that look random."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    x = (np.arange(count, dtype=np.uint64) * 2654435761 + seed) % 2**32
    x ^= x >> np.uint64(16)
    x = x * 0x7FEB352D % 2**32
    x ^= x >> np.uint64(15)
    x = x * 0x846CA68B % 2**32
    x ^= x >> np.uint64(16)
    return x.astype(np.float64) / 2**31 - 1.0


def weight(name, shape, norm):
    """Matrices keep the size of what they multiply, norms are near `norm`, other vectors near 0."""
    if len(shape) > 1:
        scale, center = 1.7 / math.sqrt(shape[-1]), 0.0
    elif "norm" in name and name.endswith("weight"):
        scale, center = 0.3, norm
    else:
        scale, center = 0.2, 0.0
    values = center + scale * numbers(name, math.prod(shape))
    return values.astype(np.float32).reshape(shape)


def checkpoint(config, norm, folder, kind):
    """Writes a folder of the model, with weights of `numbers`; gives names and shapes."""
    (folder / "config.json").write_text(json.dumps(config))
    made = kind.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as other:
        made.save_pretrained(other)
        with safe_open(pathlib.Path(other) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    weights = {name: weight(name, shape, norm) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return shapes


def rounded(values):
    return [float(f"{v:.6g}") for v in values.tolist()]


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
            model.save_pretrained(folder / "peft", selected_adapters=[adapter])
            with safe_open(folder / "peft" / adapter / "adapter_model.safetensors", "np") as file:
                own = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
            own_config = json.loads((folder / "peft" / adapter / "adapter_config.json").read_text())
            keep = [*settings, "peft_type", "bias", "use_dora", "modules_to_save", "fan_in_fan_out", "rank_pattern"]
            own_config = {key: own_config[key] for key in keep}
            own_config["target_modules"] = sorted(own_config["target_modules"])
            described[adapter] = {"config": own_config, "tensors": own}
            for key, shape in own.items():
                parameter = model.get_parameter(key.replace(".weight", f".{adapter}.weight"))
                parameter.data = torch.tensor(weight(f"{adapter} {key}", shape, norm))
        model.eval()
        rows = {}
        for chosen in ([*([adapter] for adapter in adapters), list(adapters)]):
            model.base_model.set_adapter(chosen)
            with torch.no_grad():
                logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
            rows["+".join(chosen)] = [[row, rounded(logits[row])] for row in ROWS]
    write(name, config, norm, shapes, rows, adapters=described)


def write(name, config, norm, shapes, rows, **more):
    text = json.dumps({"config": config, "norm": norm, "tensors": shapes, "rows": rows, **more})
    # A line for each tensor and row.
    text = text.replace('], "', '],\n"').replace("]], [", "]],\n[").replace(', "tensors"', ',\n"tensors"')
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CASES, *EMBEDDINGS, *RANKINGS, *ADAPTERS]:
        if name in CASES:
            generate(name)
        elif name in EMBEDDINGS:
            generate_embedding(name)
        elif name in RANKINGS:
            generate_ranking(name)
        else:
            generate_adapters(name)
        print(name, flush=True)
