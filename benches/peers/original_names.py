#!/usr/bin/env python3
"""Parts of a diffusers folder as files with the names of the models' first publications, which stable-diffusion.cpp knows.

    python3 original_names.py FOLDER PLACE

Writes PLACE/{denoiser,vae,clip_l,clip_g}.safetensors, the last for models that have it; of models with a UNet PLACE/model.safetensors, as it tells
which model a UNet is of by the text encoders beside it. Scale and shift of a transformer's last norm stay in
diffusers' order: what computes with such files is timed, not looked at.
"""
import os
import re
import sys

import torch
from safetensors.torch import load_file, save_file

RESNET = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0", "conv2": "out_layers.3",
          "conv_shortcut": "skip_connection"}
UNET = {"conv_in.": "input_blocks.0.0.", "time_embedding.linear_1.": "time_embed.0.", "time_embedding.linear_2.": "time_embed.2.",
        "add_embedding.linear_1.": "label_emb.0.0.", "add_embedding.linear_2.": "label_emb.0.2.", "conv_norm_out.": "out.0.", "conv_out.": "out.2."}
ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
SD3 = {"pos_embed.proj.": "x_embedder.proj.", "pos_embed.pos_embed": "pos_embed", "norm_out.linear.": "final_layer.adaLN_modulation.1.",
       "proj_out.": "final_layer.linear.", "time_text_embed.timestep_embedder.linear_1.": "t_embedder.mlp.0.",
       "time_text_embed.timestep_embedder.linear_2.": "t_embedder.mlp.2.", "time_text_embed.text_embedder.linear_1.": "y_embedder.mlp.0.",
       "time_text_embed.text_embedder.linear_2.": "y_embedder.mlp.2."}
FLUX = {"x_embedder.": "img_in.", "context_embedder.": "txt_in.", "norm_out.linear.": "final_layer.adaLN_modulation.1.", "proj_out.": "final_layer.linear.",
        "time_text_embed.timestep_embedder.linear_1.": "time_in.in_layer.", "time_text_embed.timestep_embedder.linear_2.": "time_in.out_layer.",
        "time_text_embed.text_embedder.linear_1.": "vector_in.in_layer.", "time_text_embed.text_embedder.linear_2.": "vector_in.out_layer."}


def begun(name, table):
    """The name with the first beginning of the table that it has in the table's words."""
    for old, new in table.items():
        if name.startswith(old):
            return new + name[len(old):]
    return name


def unet(weights):
    """Blocks in the order of their layers: each level has two layers on the way down, three on the way up."""
    attended = {match[1] for name in weights if (match := re.match(r"up_blocks\.(\d+)\.attentions", name))}
    named = {}
    for name, tensor in weights.items():
        name = begun(name, UNET)
        if match := re.match(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)", name):
            way, level, part, layer, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
            if part == "resnets":
                rest = re.sub(r"^[^.]+(?:_[a-z]+)*", lambda inner: RESNET[inner[0]], rest)
            if part == "downsamplers":
                name = f"input_blocks.{3 * level + 3}.0.op.{rest.removeprefix('conv.')}"
            elif part == "upsamplers":
                name = f"output_blocks.{3 * level + 2}.{2 if str(level) in attended else 1}.{rest}"
            else:
                block = f"input_blocks.{3 * level + layer + 1}" if way == "down" else f"output_blocks.{3 * level + layer}"
                name = f"{block}.{0 if part == 'resnets' else 1}.{rest}"
        elif match := re.match(r"mid_block\.(resnets|attentions)\.(\d)\.(.*)", name):
            rest = match[3]
            if match[1] == "resnets":
                rest = re.sub(r"^[^.]+", lambda inner: RESNET[inner[0]], rest)
            name = f"middle_block.{1 if match[1] == 'attentions' else 2 * int(match[2])}.{rest}"
        named[name] = tensor
    return named


def vae(weights):
    """Levels on the way up are counted from the last; the attention's layers are convolutions of one pixel."""
    named = {}
    for name, tensor in weights.items():
        name = re.sub(r"down_blocks\.(\d)\.resnets\.(\d)", r"down.\1.block.\2", name)
        name = re.sub(r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample", name)
        name = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda found: f"up.{3 - int(found[1])}.block.{found[2]}", name)
        name = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda found: f"up.{3 - int(found[1])}.upsample", name)
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}", name)
        if match := re.match(r"(.*)mid_block\.attentions\.0\.(.*)\.(weight|bias)", name):
            name = f"{match[1]}mid.attn_1.{ATTENTION[match[2]]}.{match[3]}"
            if tensor.dim() == 2:
                tensor = tensor[:, :, None, None]
        name = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        named[name] = tensor
    return named


def joined(weights, parts, name, of):
    """Layers that were one: their rows one below the other."""
    for kind in ("weight", "bias"):
        of[f"{name}.{kind}"] = torch.cat([weights[f"{part}.{kind}"] for part in parts])


def streams(weights, block, sides, attention, more):
    """A block of two streams: the parts of each side under their names."""
    named = {}
    for side, prefix, q, k, v, out in (
        (sides[0], "", "to_q", "to_k", "to_v", "to_out.0"), (sides[1], "_context", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    ):
        for old, new in ((f"norm1{prefix}.linear", more["modulation"]), (f"ff{prefix}.net.0.proj", more["up"]), (f"ff{prefix}.net.2", more["down"])):
            for kind in ("weight", "bias"):
                if f"{block}.{old}.{kind}" in weights:
                    named[f"{side(new)}.{kind}"] = weights[f"{block}.{old}.{kind}"]
        joined(weights, [f"{block}.attn.{part}" for part in (q, k, v)], side(attention + ".qkv"), named)
        added = "norm_added_" if prefix else "norm_"
        for which in "qk":
            named[side(f"{attention}.{more['norm'][which]}")] = weights[f"{block}.attn.{added}{which}.weight"]
        for kind in ("weight", "bias"):
            if f"{block}.attn.{out}.{kind}" in weights:
                named[f"{side(attention + '.proj')}.{kind}"] = weights[f"{block}.attn.{out}.{kind}"]
    return named


def sd3(weights):
    named = {begun(name, SD3): tensor for name, tensor in weights.items() if not name.startswith("transformer_blocks.")}
    more = dict(modulation="adaLN_modulation.1", up="mlp.fc1", down="mlp.fc2", norm={"q": "ln_q.weight", "k": "ln_k.weight"})
    for i in range(count(weights, "transformer_blocks")):
        block, place = f"transformer_blocks.{i}", f"joint_blocks.{i}"
        sides = [lambda name: f"{place}.x_block.{name}", lambda name: f"{place}.context_block.{name}"]
        named.update(streams(weights, block, sides, "attn", more))
        if f"{block}.attn2.to_q.weight" in weights:
            joined(weights, [f"{block}.attn2.to_{part}" for part in "qkv"], f"{place}.x_block.attn2.qkv", named)
            for which in "qk":
                named[f"{place}.x_block.attn2.ln_{which}.weight"] = weights[f"{block}.attn2.norm_{which}.weight"]
            for kind in ("weight", "bias"):
                named[f"{place}.x_block.attn2.proj.{kind}"] = weights[f"{block}.attn2.to_out.0.{kind}"]
    return named


def flux(weights):
    named = {begun(name, FLUX): tensor for name, tensor in weights.items() if "transformer_blocks." not in name}
    norm = {"q": "norm.query_norm.scale", "k": "norm.key_norm.scale"}
    more = dict(modulation="mod.lin", up="mlp.0", down="mlp.2", norm=norm)
    for i in range(count(weights, "transformer_blocks")):
        place = f"double_blocks.{i}"
        sides = [lambda name: f"{place}.img_{name}", lambda name: f"{place}.txt_{name}"]
        named.update(streams(weights, f"transformer_blocks.{i}", sides, "attn", more))
    for i in range(count(weights, "single_transformer_blocks")):
        block, place = f"single_transformer_blocks.{i}", f"single_blocks.{i}"
        joined(weights, [f"{block}.attn.to_{part}" for part in "qkv"] + [f"{block}.proj_mlp"], f"{place}.linear1", named)
        for kind in ("weight", "bias"):
            named[f"{place}.linear2.{kind}"] = weights[f"{block}.proj_out.{kind}"]
            named[f"{place}.modulation.lin.{kind}"] = weights[f"{block}.norm.linear.{kind}"]
        for which in "qk":
            named[f"{place}.{norm[which]}"] = weights[f"{block}.attn.norm_{which}.weight"]
    return named


def count(weights, blocks):
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith(blocks + "."))


def clip(weights):
    """transformers leaves out the tower's name since version 5."""
    whole = any(name.startswith("text_model.") for name in weights)
    return {name if whole or name.startswith("text_projection") else f"text_model.{name}": tensor for name, tensor in weights.items()}


def main():
    folder, place = sys.argv[1:]
    os.makedirs(place, exist_ok=True)
    part = lambda name: os.path.join(folder, name)
    denoiser = next(part(name) for name in ("unet", "transformer") if os.path.exists(part(name)))
    weights = load_file(os.path.join(denoiser, "diffusion_pytorch_model.safetensors"))
    named = unet(weights) if denoiser.endswith("unet") else sd3(weights) if "pos_embed.pos_embed" in weights else flux(weights)
    assert denoiser.endswith("transformer") or len(named) == len(weights), "two tensors got one name"
    parts = {"denoiser": named, "vae": vae(load_file(os.path.join(folder, "vae/diffusion_pytorch_model.safetensors")))}
    for name, encoder in (("clip_l", "text_encoder"), ("clip_g", "text_encoder_2")):
        file = os.path.join(folder, encoder, "model.safetensors")
        if os.path.exists(file) and (tensors := clip(load_file(file))) and any("token_embedding" in key for key in tensors):
            parts[name] = tensors
    if denoiser.endswith("unet"):
        beginnings = dict(denoiser="model.diffusion_model.", vae="first_stage_model.", clip_l="cond_stage_model.transformer.", clip_g="cond_stage_model.1.transformer.")
        parts = {"model": {beginnings[part] + name: tensor for part, tensors in parts.items() for name, tensor in tensors.items()}}
    for name, tensors in parts.items():
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, os.path.join(place, name + ".safetensors"))


if __name__ == "__main__":
    sys.exit(main())
