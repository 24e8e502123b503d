"""Writes the checkpoints beside this file: tiny models in the layouts of GPTQ, AWQ and compressed-tensors, and their logits.

    pip install torch transformers safetensors numpy compressed-tensors
    pip install --no-deps auto-gptq autoawq
    python generate.py [CASE ...]

AutoGPTQ 0.7.1 and AutoAWQ 0.2.9 are too old for the other packages: their modules that pack matrices are loaded without the rest
of them. The logits are transformers', in f32, of the numbers that codes, zero points and scales stand for, which are computed here
before anything is packed.
"""

import importlib
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
TOKENS = [3 + i * 7 % 29 for i in range(24)]
ROWS = [0, 6, 23]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL = {**LLAMA, "intermediate_size": 32}
QWEN = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MIXTURE = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def gptq(bits, size, order, symmetric, version="gptq"):
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order, "sym": symmetric}
    return {**config, "checkpoint_format": version, "lm_head": False}


def awq(size):
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return {**config, "modules_to_not_convert": None}


def tensors(kind, weights, activations=None):
    group = {"targets": ["Linear"], "weights": {"type": "int", **weights}, "input_activations": activations}
    config = {"quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed"}
    return {**config, "config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*mlp.gate$"]}


DYNAMIC = {"type": "int", "num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
GROUPS = {"num_bits": 4, "strategy": "group", "group_size": 32}
# Models and what their configurations say.
CASES = {
    "gptq": (QWEN, gptq(4, 32, False, True)),
    "gptq-order": (LLAMA, gptq(4, 32, True, False)),
    "gptq-v2": (SMALL, gptq(8, -1, False, True, "gptq_v2")),
    "gptq-zeros": (SMALL, gptq(8, 32, False, False)),
    "gptq-experts": (MIXTURE, gptq(4, 32, True, True)),
    "awq": (LLAMA, awq(32)),
    "awq-experts": (MIXTURE, awq(32)),
    "packed": (QWEN, tensors("pack-quantized", {**GROUPS, "symmetric": False})),
    "packed-order": (LLAMA, tensors("pack-quantized", {**GROUPS, "symmetric": True, "actorder": "group"})),
    "packed-experts": (MIXTURE, tensors("pack-quantized", {**GROUPS, "symmetric": True})),
    "packed-channel": (SMALL, tensors("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True})),
    "int": (SMALL, tensors("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True}, DYNAMIC)),
}


def bare(package):
    """A package without what its beginning does."""
    module = types.ModuleType(package)
    parent, _, _ = package.rpartition(".")
    if parent and parent not in sys.modules:
        bare(parent)
    paths = sys.modules[parent].__path__ if parent else None
    name = package.rpartition(".")[2]
    if paths is None:
        module.__path__ = list(importlib.util.find_spec(package).submodule_search_locations)
    else:
        module.__path__ = [str(pathlib.Path(path) / name) for path in paths]
    sys.modules[package] = module


def packer(package, module):
    if package not in sys.modules:
        parts = module.split(".")[:-1]
        for count in range(len(parts) + 1):
            bare(".".join([package, *parts[:count]]))
    if package == "awq" and "awq.utils" not in sys.modules:
        bare("awq.utils")
    return importlib.import_module(f"{package}.{module}")


class Matrix:
    """Codes of `bits` with zero points and scales for each group, of a matrix `(outputs, inputs)`."""

    def __init__(self, weight, bits, size, symmetric, order, scale_type):
        outputs, inputs = weight.shape
        size = inputs if size == -1 else size
        self.groups = torch.arange(inputs) // size
        if order:
            self.groups = self.groups[torch.from_numpy(np.random.permutation(inputs))]
        self.bits, self.symmetric, most = bits, symmetric, 2**bits - 1
        count = (inputs + size - 1) // size
        scales, zeros = torch.zeros(outputs, count), torch.full((outputs, count), 2.0 ** (bits - 1))
        for group in range(count):
            own = weight[:, self.groups == group]
            low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
            if symmetric:
                scales[:, group] = torch.maximum(-low, high) / (most // 2)
            else:
                scales[:, group] = (high - low) / most
                # 0 is none that AutoGPTQ can write.
                zeros[:, group] = (-low / scales[:, group]).round().clamp(1, most)
        self.scales, self.zeros = scales.to(scale_type), zeros
        of_each = lambda values: values.float()[:, self.groups]
        self.codes = (weight / of_each(self.scales) + of_each(zeros)).round().clamp(0, most)
        self.values = (self.codes - of_each(zeros)) * of_each(self.scales)

    def linear(self, bias):
        """What packs itself."""
        linear = torch.nn.Linear(*reversed(self.codes.shape), bias=bias is not None).half()
        # Wide, or packing would round what it makes codes of.
        linear.weight.data = self.values.float()
        if bias is not None:
            linear.bias.data = bias
        return linear

    def gptq(self, size, version, bias):
        module = packer("auto_gptq", "nn_modules.qlinear.qlinear_cuda")
        packed = module.QuantLinear(self.bits, size, *reversed(self.codes.shape), bias is not None)
        packed.pack(self.linear(bias), self.scales.float(), self.zeros.clone(), self.groups.to(torch.int32))
        stored = dict(packed.state_dict())
        stored["scales"] = stored["scales"].half()
        if version == "gptq_v2":
            # The second version has zero points as they are.
            stored["qzeros"] += 0x11111111 if self.bits == 4 else 0x01010101
        return stored

    def awq(self, size, bias):
        module = packer("awq", "modules.linear.gemm")
        scales, zeros = self.scales.t().contiguous(), self.zeros.t().contiguous()
        module.get_best_device = lambda: "cpu"
        made = module.WQLinear_GEMM.from_linear(self.linear(bias), 4, size, False, scales.float(), zeros)
        return dict(made.state_dict())

    def tensors(self, config, bias):
        group = config["config_groups"]["group_0"]
        middle = 2 ** (self.bits - 1)
        if group["weights"].get("actorder"):
            # Later versions of the package do not write it any more.
            codes = (self.codes - middle).to(torch.int8)
            shape, g_idx = torch.tensor(codes.shape), self.groups.to(torch.int32)
            packed = {"weight_packed": pack_to_int32(codes, self.bits), "weight_shape": shape, "weight_g_idx": g_idx}
            return {**packed, "weight_scale": self.scales}
        arguments = QuantizationArgs(**group["weights"])
        activations = group["input_activations"]
        scheme = QuantizationScheme(targets=["Linear"], weights=arguments, input_activations=activations)
        # Wide, or packing would round what it makes codes of.
        state = {"weight": self.values.float(), "weight_scale": self.scales}
        if not self.symmetric:
            state["weight_zero_point"] = (self.zeros - middle).to(torch.int8)
        compressor = BaseCompressor.get_value_from_registry(config["format"])
        stored = compressor.compress(state, scheme)
        return stored if bias is None else {**stored, "bias": bias}


def quantized(config, weight, bias):
    """The tensors of a matrix, and its numbers."""
    method = config["quant_method"]
    if method == "compressed-tensors":
        own = config["config_groups"]["group_0"]["weights"]
        size = own.get("group_size", -1)
        matrix = Matrix(weight, own["num_bits"], size, own["symmetric"], "actorder" in own, torch.bfloat16)
        return matrix.tensors(config, bias), matrix.values
    size, order = config["group_size"], config.get("desc_act", False)
    matrix = Matrix(weight, config["bits"], size, config.get("sym", False), order, torch.float16)
    if method == "awq":
        return matrix.awq(size, bias), matrix.values
    return matrix.gptq(size, config["checkpoint_format"], bias), matrix.values


def generate(name):
    config, quantization = CASES[name]
    torch.manual_seed(len(name))
    np.random.seed(len(name))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    dtype = torch.bfloat16 if quantization["quant_method"] == "compressed-tensors" else torch.float16
    stored = {}

    def store(module, weight, bias=None):
        weight = weight.to(dtype).float()
        own, values = quantized(quantization, weight, bias)
        stored.update({f"{module}.{part}": tensor for part, tensor in own.items()})
        return values

    done = set()
    for key, parameter in model.named_parameters():
        wide = 1.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.3
        center = 1.0 if "norm" in key else 0.0
        parameter.data = center + wide * torch.randn(parameter.shape).clamp(-3, 3)
        parameter.data = parameter.data.to(dtype).float()
    parameters = dict(model.named_parameters())
    for key, parameter in parameters.items():
        module, _, part = key.rpartition(".")
        if part in ("gate_up_proj", "down_proj") and parameter.ndim == 3:
            for expert in range(parameter.shape[0]):
                rows = parameter.data[expert].chunk(2) if part == "gate_up_proj" else [parameter.data[expert]]
                names = ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"]
                made = [store(f"{module}.{expert}.{own}", matrix) for own, matrix in zip(names, rows)]
                parameter.data[expert] = torch.cat(made)
        elif part == "weight" and module.endswith("_proj"):
            bias = parameters.get(f"{module}.bias")
            parameter.data = store(module, parameter.data, None if bias is None else bias.data.to(dtype))
            done.add(f"{module}.bias")
        elif key not in done:
            stored[key] = parameter.data.to(dtype)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
    rows = [[row, [float(f"{value:.6g}") for value in logits[row]]] for row in ROWS]
    stored = {key: value.contiguous() for key, value in stored.items()}
    save_file(stored, HERE / f"{name}.safetensors", metadata={"format": "pt"})
    whole = {**config, "torch_dtype": str(dtype).removeprefix("torch."), "quantization_config": quantization}
    text = json.dumps({"config": whole, "rows": rows}).replace(', "rows"', ',\n"rows"').replace("]], [", "]],\n[")
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        generate(case)
        print(case, flush=True)
