"""Writes the quantized checkpoints beside this file, and what Hugging Face transformers computes with their numbers.

    pip install torch transformers compressed-tensors safetensors numpy
    python generate.py [CASE ...]

Weights before quantization are those of ../transformers/numbers_of.py. A case is a file of tensors, those of quantized modules only, and a
JSON file: the configuration, the names and shapes of the other tensors, logits of a model in float32 whose matrices are dequantized, and the
configurations of other makers that mean the same tensors, under other names perhaps.

compressed-tensors packs and unpacks the cases of its formats; transformers' operations make and undo `fp8`. What FBGEMM, ModelOpt and Quark
write needs a GPU here or packages of their own: their tensors are the same numbers in their layout, by the makers' documentation.
"""

import json
import pathlib
import sys
import tempfile
from types import SimpleNamespace

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "transformers"))
from numbers_of import ROWS, TOKENS, rounded, weight  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "vocab_size": 40,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LATENT = {
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}


# Every layer has experts.
LLAMA4 = {
    "intermediate_size_mlp": 64,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "moe_layers": [0],
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 32,
    "attn_temperature_tuning": True,
    "floor_scale": 32,
    "attn_scale": 0.1,
    "use_qk_norm": True,
}


def config(architecture, model_type, **settings):
    return {"architectures": [architecture], "model_type": model_type, **SIZES, **settings}


LLAMA = config("LlamaForCausalLM", "llama")


def is_matrix(name, shape):
    """Whether a tensor is of a linear layer that recipes quantize."""
    others = ("lm_head.weight", "mlp.gate.weight", "router.weight")
    return len(shape) > 1 and "embed" not in name and not name.endswith(others)


class Fp8:
    """transformers' `fp8`, which DeepSeek and Qwen write, too."""

    def __init__(self, block, scale="weight_scale_inv", **more):
        self.config = FineGrainedFP8Config(weight_block_size=block, **more)
        self.scale = scale

    def __call__(self, name, value):
        owner = SimpleNamespace(quantization_config=self.config)
        made = Fp8Quantize(owner).convert({name: value})
        (scale,) = [key for key in made if key != name]
        back = Fp8Dequantize(owner)._dequantize_one(made[name], made[scale], torch.float32)
        return made, back

    def quantization(self):
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": self.config.weight_block_size}


class Compressed:
    """compressed-tensors' formats."""

    def __init__(self, format, ignore=("lm_head",), targets=("Linear",), **args):
        self.weights = QuantizationArgs(**args)
        self.scheme = QuantizationScheme(targets=list(targets), weights=self.weights, format=format)
        self.compressor = BaseCompressor.get_value_from_registry(format)
        self.format, self.ignore = format, list(ignore)

    def __call__(self, name, value):
        args, strategy = self.weights, self.weights.strategy
        if strategy == "tensor":
            low, high = value.min(), value.max()
        elif strategy == "channel":
            low, high = value.amin(1, keepdim=True), value.amax(1, keepdim=True)
        elif strategy == "block":
            rows, columns = args.block_structure
            blocks = [[part for part in row.split(columns, 1)] for row in value.split(rows, 0)]
            low = torch.stack([torch.stack([part.min() for part in row]) for row in blocks])
            high = torch.stack([torch.stack([part.max() for part in row]) for row in blocks])
        else:
            groups = value.unflatten(1, (-1, args.group_size))
            low, high = groups.amin(2), groups.amax(2)
        whole = generate_gparam(value.min(), value.max()) if strategy == "tensor_group" else None
        scale, zero = calculate_qparams(low, high, args, global_scale=whole)
        state = {"weight": value, "weight_scale": scale, "weight_zero_point": zero}
        if whole is not None:
            state["weight_global_scale"] = whole
        made = self.compressor.compress(state, self.scheme)
        made = {key: tensor for key, tensor in made.items() if key != "weight_zero_point"}
        if whole is None:
            back = self.compressor.decompress(dict(made), self.scheme)["weight"].to(torch.float32)
        else:
            # Its own way is in bfloat16, which rounds scales.
            numbers = unpack_fp4_from_uint8(made["weight_packed"], *value.shape).to(torch.float32)
            scale = made["weight_scale"].to(torch.float32)
            back = dequantize(numbers, scale, args=args, dtype=torch.float32, global_scale=whole.to(torch.float32))
        if value.shape[1] % 64 != 0:
            # It fits no format of blocks.
            back = back.to(torch.bfloat16).to(torch.float32)
        stem = name.removesuffix(".weight")
        return {f"{stem}.{key}": tensor for key, tensor in made.items()}, back

    def group(self):
        return json.loads(self.scheme.model_dump_json())

    def quantization(self):
        group = self.group()
        group.pop("format")
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "ignore": self.ignore,
            "config_groups": {"group_0": group},
        }


class Mixed:
    """Several groups of compressed-tensors, and matrices that stay as they are."""

    def __init__(self, ignore, **groups):
        self.ignore, self.groups = ignore, list(groups.values())

    def __call__(self, name, value):
        stem = name.removesuffix(".weight")
        if any(stem.endswith(ignored) for ignored in self.ignore):
            return None
        for group in self.groups:
            if any(part in stem for part in group.parts):
                return group(name, value)
        raise KeyError(name)

    def quantization(self):
        return {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "quantization_status": "compressed",
            "ignore": ["lm_head", *(f"re:.*{name}$" for name in self.ignore)],
            "config_groups": {f"group_{i}": group.group() for i, group in enumerate(self.groups)},
        }


def group(parts, *args, **more):
    made = Compressed(*args, targets=[f"re:.*{part}" for part in parts], **more)
    made.parts = parts
    return made


class Fbgemm:
    """Experts of Llama 4 as FBGEMM stores them: rows of outputs, a scale for each output."""

    def __call__(self, name, value):
        # Of a row, or of a column of experts: an output in either case.
        scale = value.abs().amax(1, keepdim=True) / 448
        names = name, name + "_scale"
        bits = (value / scale).to(torch.float8_e4m3fn)
        stored = scale.transpose(1, 2) if name.endswith("experts.down_proj") else scale
        return dict(zip(names, (bits, stored))), bits.to(torch.float32) * scale

    def quantization(self):
        return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head", "router"]}


FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float"}
QUARK = {"quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {}, "layer_type_quant_config": {}}
QUARK |= {"export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}}


def quark(**weight):
    return {**QUARK, "global_quant_config": {"weight": {"is_dynamic": False, "symmetric": True, **weight}}}


def modelopt(algorithm, **more):
    return {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"], **more}}


# The configuration before quantization, how, and configurations of others: what they say, and the parts that have other names there or none.
CASES = {
    "fp8-block": (config("LlamaForCausalLM", "llama", hidden_size=128), Fp8([32, 64]), []),
    "fp8-experts": (config("Qwen3MoeForCausalLM", "qwen3_moe", **EXPERTS), Fp8([32, 64]), []),
    "fp8-latent": (config("DeepseekV3ForCausalLM", "deepseek_v3", **LATENT), Fp8([32, 64], scale_fmt="ue8m0"), []),
    "tensor": (
        LLAMA,
        Compressed("float-quantized", **FLOAT8, strategy="tensor"),
        [
            ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, {}),
            (modelopt("FP8"), {}),
            (quark(dtype="fp8_e4m3", qscheme="per_tensor"), {}),
        ],
    ),
    "channel": (
        LLAMA,
        Compressed("float-quantized", **FLOAT8, strategy="channel"),
        [
            ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, {}),
            (modelopt("FP8_PER_CHANNEL_PER_TOKEN"), {}),
            (quark(dtype="fp8_e4m3", qscheme="per_channel", ch_axis=0), {}),
        ],
    ),
    "ragged": (
        LLAMA,
        Compressed("naive-quantized", **FLOAT8, strategy="block", block_structure=[48, 64]),
        [],
    ),
    "fbgemm": (config("Llama4ForCausalLM", "llama4_text", **LLAMA4), Fbgemm(), []),
    "fused": (config("Phi3ForCausalLM", "phi3", sliding_window=None), Compressed("float-quantized", **FLOAT8, strategy="tensor"), []),
    "odd": (
        config("LlamaForCausalLM", "llama", hidden_size=96, num_attention_heads=3),
        Compressed("float-quantized", **FLOAT8, strategy="channel"),
        [],
    ),
    "mxfp8": (
        LLAMA,
        Compressed("mxfp8-quantized", **FLOAT8, strategy="group", group_size=32, scale_dtype=torch.uint8),
        [(modelopt("MXFP8"), {})],
    ),
    "mxfp4": (
        LLAMA,
        Compressed("mxfp4-pack-quantized", **FLOAT4, strategy="group", group_size=32, scale_dtype=torch.uint8),
        [(quark(dtype="fp4", qscheme="per_group", group_size=32, ch_axis=-1, scale_format="e8m0"), {"weight_packed": "weight"})],
    ),
    "nvfp4": (
        LLAMA,
        Compressed(
            "nvfp4-pack-quantized", **FLOAT4, strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn
        ),
        [
            (
                modelopt("NVFP4", group_size=16),
                {"weight_packed": "weight", "weight_global_scale": None, "other_global_scale": "weight_scale_2"},
            )
        ],
    ),
    "mixed": (
        LLAMA,
        Mixed(
            ["v_proj"],
            attention=group(["self_attn"], "float-quantized", **FLOAT8, strategy="channel"),
            rest=group(["mlp"], "mxfp4-pack-quantized", **FLOAT4, strategy="group", group_size=32, scale_dtype=torch.uint8),
        ),
        [],
    ),
}


def tensors_of(settings):
    """Names and shapes of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(settings))
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).save_pretrained(folder)
        with safe_open(folder / "model.safetensors", "np") as file:
            return {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}


def logits_of(settings, weights):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(settings))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(torch.tensor([TOKENS]), use_cache=False).logits[0]


def generate(name):
    settings, quantize, others = CASES[name]
    plain, quantized, weights = {}, {}, {}
    for tensor, shape in tensors_of(settings).items():
        value = torch.tensor(weight(tensor, shape, 1.0))
        made = quantize(tensor, value) if is_matrix(tensor, shape) else None
        if made is None:
            plain[tensor], weights[tensor] = shape, value
            continue
        parts, weights[tensor] = made
        quantized |= {key: part.contiguous() for key, part in parts.items()}
    if name == "nvfp4":
        # What ModelOpt multiplies with is what weights were multiplied with here.
        for key in [key for key in quantized if key.endswith("weight_global_scale")]:
            quantized[key.replace("weight_global_scale", "other_global_scale")] = 1 / quantized[key]
    save_file(quantized, HERE / f"{name}.safetensors")
    logits = logits_of(settings, {key: value.contiguous() for key, value in weights.items()})
    text = json.dumps(
        {
            "config": {**settings, "quantization_config": quantize.quantization()},
            "others": [{"quantization_config": other, "names": names} for other, names in others],
            "norm": 1.0,
            "tensors": plain,
            "rows": [[row, rounded(logits[row])] for row in ROWS],
        }
    )
    # A line for each tensor and row.
    text = text.replace('], "', '],\n"').replace("]], [", "]],\n[").replace(', "tensors"', ',\n"tensors"')
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        generate(case)
        print(case, flush=True)
