#!/usr/bin/env python3
"""What `sd-worker-rocm bench --json` measures, for PyTorch: a guided step of Stable Diffusion 1's UNet, and the VAE's way from latents to pixels.

    python3 benches/peers/diffusion.py FOLDER [--size 512] [--steps 20] [--runs 3] [--device cuda] [--dtype f16] [--compile]

FOLDER is a model's as diffusers writes it, or as benches/random-sd does. Prints one JSON object for each memory layout, and with --compile
one more for torch.compile of the faster one.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
GUIDANCE, TOKENS = 7.5, 77


def conv(inputs, outputs, kernel=3, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)


class Resnet(nn.Module):
    def __init__(self, inputs, outputs, groups, eps, time=None):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs, eps)
        self.conv1 = conv(inputs, outputs)
        if time:
            self.time_emb_proj = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(groups, outputs, eps)
        self.conv2 = conv(outputs, outputs)
        self.conv_shortcut = conv(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x, time=None):
        h = self.conv1(F.silu(self.norm1(x)))
        if time is not None:
            h = h + self.time_emb_proj(time)[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """From `channels` to `context` (itself unless given); with `groups`, the VAE's, which norms its input and has biases."""

    def __init__(self, channels, heads, context=None, groups=None, eps=1e-6):
        super().__init__()
        bias = groups is not None
        if bias:
            self.group_norm = nn.GroupNorm(groups, channels, eps)
        self.to_q = nn.Linear(channels, channels, bias)
        self.to_k = nn.Linear(context or channels, channels, bias)
        self.to_v = nn.Linear(context or channels, channels, bias)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])
        self.heads = heads

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, y in ((self.to_q, x), (self.to_k, context), (self.to_v, context)))
        return self.to_out[0](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def of_pixels(self, x):
        rows = self.group_norm(x).flatten(2).transpose(1, 2)
        return x + self(rows).transpose(1, 2).reshape(x.shape)


class GatedGelu(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.proj = nn.Linear(inputs, 2 * outputs)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, -1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, channels):
        super().__init__()
        # The layer without weights between them is dropout.
        self.net = nn.ModuleList([GatedGelu(channels, 4 * channels), nn.Identity(), nn.Linear(4 * channels, channels)])

    def forward(self, x):
        return self.net[2](self.net[0](x))


class TransformerLayer(nn.Module):
    def __init__(self, channels, heads, text):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.attn1 = Attention(channels, heads)
        self.attn2 = Attention(channels, heads, text)
        self.ff = FeedForward(channels)

    def forward(self, x, text):
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class Transformer(nn.Module):
    def __init__(self, channels, heads, text, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, 1e-6)
        self.proj_in = conv(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerLayer(channels, heads, text)])
        self.proj_out = conv(channels, channels, 1)

    def forward(self, x, text):
        h = self.proj_in(self.norm(x))
        rows = self.transformer_blocks[0](h.flatten(2).transpose(1, 2), text)
        return self.proj_out(rows.transpose(1, 2).reshape(h.shape)) + x


class Sampler(nn.Module):
    """The change of size at the end of a block."""

    def __init__(self, channels, up):
        super().__init__()
        self.up = up
        self.conv = conv(channels, channels, stride=1 if up else 2)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest") if self.up else x)


class Block(nn.Module):
    """Residual layers, with attention where `attends`; `sampler` is "downsamplers", "upsamplers" or nothing."""

    def __init__(self, inputs, channels, config, attends=False, sampler=None, time=None):
        super().__init__()
        groups, eps = config["norm_num_groups"], config.get("norm_eps", 1e-6)
        self.resnets = nn.ModuleList(Resnet(size, channels, groups, eps, time) for size in inputs)
        if attends:
            text, heads = config["cross_attention_dim"], config["attention_head_dim"]
            self.attentions = nn.ModuleList(Transformer(channels, heads, text, groups) for _ in inputs)
        self.attends = attends
        if sampler:
            setattr(self, sampler, nn.ModuleList([Sampler(channels, sampler == "upsamplers")]))
        self.sampler = sampler

    def layer(self, i, x, time=None, text=None):
        x = self.resnets[i](x, time)
        return self.attentions[i](x, text) if self.attends else x

    def resized(self, x):
        return getattr(self, self.sampler)[0](x)


class Middle(nn.Module):
    def __init__(self, channels, config, attention, time=None):
        super().__init__()
        groups, eps = config["norm_num_groups"], config.get("norm_eps", 1e-6)
        self.resnets = nn.ModuleList(Resnet(channels, channels, groups, eps, time) for _ in range(2))
        self.attentions = nn.ModuleList([attention])


class TimeEmbedding(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear_1 = nn.Linear(inputs, outputs)
        self.linear_2 = nn.Linear(outputs, outputs)

    def forward(self, x):
        return self.linear_2(F.silu(self.linear_1(x)))


class UNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        widths, layers, groups = config["block_out_channels"], config["layers_per_block"], config["norm_num_groups"]
        first, last = widths[0], widths[-1]
        time = 4 * first
        self.first = first
        self.time_embedding = TimeEmbedding(first, time)
        self.conv_in = conv(config["in_channels"], first)
        inputs, skips = first, [first]
        self.down_blocks = nn.ModuleList()
        for i, (width, kind) in enumerate(zip(widths, config["down_block_types"])):
            sampler = "downsamplers" if i + 1 < len(widths) else None
            self.down_blocks.append(Block([inputs] + [width] * (layers - 1), width, config, "Attn" in kind, sampler, time))
            skips += [width] * (layers + bool(sampler))
            inputs = width
        attention = Transformer(last, config["attention_head_dim"], config["cross_attention_dim"], groups)
        self.mid_block = Middle(last, config, attention, time)
        self.up_blocks = nn.ModuleList()
        for i, (width, kind) in enumerate(zip(reversed(widths), config["up_block_types"])):
            sizes = [skips.pop() + (inputs if layer == 0 else width) for layer in range(layers + 1)]
            self.up_blocks.append(Block(sizes, width, config, "Attn" in kind, "upsamplers" if i + 1 < len(widths) else None, time))
            inputs = width
        self.conv_norm_out = nn.GroupNorm(groups, first, config["norm_eps"])
        self.conv_out = conv(first, config["out_channels"])

    def forward(self, x, timestep, text):
        half = self.first // 2
        frequencies = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        angles = timestep.float() * frequencies
        time = torch.cat([angles.cos(), angles.sin()])[None].to(x.dtype)
        time = F.silu(self.time_embedding(time))
        x = self.conv_in(x)
        skips = [x]
        for block in self.down_blocks:
            for i in range(len(block.resnets)):
                x = block.layer(i, x, time, text)
                skips.append(x)
            if block.sampler:
                x = block.resized(x)
                skips.append(x)
        x = self.mid_block.resnets[0](x, time)
        x = self.mid_block.attentions[0](x, text)
        x = self.mid_block.resnets[1](x, time)
        for block in self.up_blocks:
            for i in range(len(block.resnets)):
                x = block.layer(i, torch.cat([x, skips.pop()], 1), time, text)
            if block.sampler:
                x = block.resized(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        widths, groups = config["block_out_channels"][::-1], config["norm_num_groups"]
        self.conv_in = conv(config["latent_channels"], widths[0])
        self.mid_block = Middle(widths[0], config, Attention(widths[0], 1, groups=groups))
        inputs = widths[0]
        self.up_blocks = nn.ModuleList()
        for i, width in enumerate(widths):
            sizes = [inputs] + [width] * config["layers_per_block"]
            self.up_blocks.append(Block(sizes, width, config, sampler="upsamplers" if i + 1 < len(widths) else None))
            inputs = width
        self.conv_norm_out = nn.GroupNorm(groups, inputs, 1e-6)
        self.conv_out = conv(inputs, config["out_channels"])

    def forward(self, x):
        x = self.mid_block.resnets[0](self.conv_in(x))
        x = self.mid_block.resnets[1](self.mid_block.attentions[0].of_pixels(x))
        for block in self.up_blocks:
            for i in range(len(block.resnets)):
                x = block.layer(i, x)
            if block.sampler:
                x = block.resized(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Vae(nn.Module):
    """From latents to pixels."""

    def __init__(self, config):
        super().__init__()
        self.scaling = config["scaling_factor"]
        self.post_quant_conv = conv(config["latent_channels"], config["latent_channels"], 1)
        self.decoder = Decoder(config)

    def forward(self, latents):
        """Pictures in about 0..1 of latents as the UNet has them."""
        dtype = self.post_quant_conv.weight.dtype
        x = self.decoder(self.post_quant_conv((latents / self.scaling).to(dtype)))
        return x.float() * 0.5 + 0.5


def load(network, folder, part, parts=None):
    """The part of a model's folder, as a network with its weights; `parts` are the tensors' first names, if not all."""
    with open(os.path.join(folder, part, "config.json"), encoding="utf-8") as file:
        built = network(json.load(file))
    weights = load_file(os.path.join(folder, part, "diffusion_pytorch_model.safetensors"))
    built.load_state_dict({name: w for name, w in weights.items() if parts is None or name.split(".")[0] in parts})
    return built.eval()


class Bench:
    def __init__(self, options, layout):
        self.options, self.layout = options, layout
        self.device, self.dtype = torch.device(options.device), DTYPES[options.dtype]
        self.unet, self.vae = (
            network.to(self.device, self.dtype, memory_format=LAYOUTS[layout])
            for network in (load(UNet, options.folder, "unet"), load(Vae, options.folder, "vae", ("decoder", "post_quant_conv")))
        )
        side = options.size // 8
        generator = torch.Generator().manual_seed(1)
        self.noise = torch.randn(1, 4, side, side, generator=generator).to(self.device)
        width = self.unet.down_blocks[0].attentions[0].transformer_blocks[0].attn2.to_k.in_features
        self.text = torch.randn(2, TOKENS, width, generator=generator).to(self.device, self.dtype)
        # Noise levels and times of an Euler sampler on Stable Diffusion's schedule.
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
        products = torch.cumprod(1 - betas, 0)
        times = torch.linspace(999, 0, options.steps)
        levels = ((1 - products) / products).sqrt()[times.long()]
        self.levels = [*levels.tolist(), 0.0]
        self.times = times.to(self.device)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, x, i):
        level, after = self.levels[i], self.levels[i + 1]
        scaled = (x / (level * level + 1) ** 0.5).to(self.dtype)
        both = torch.cat([scaled, scaled]).contiguous(memory_format=LAYOUTS[self.layout])
        without, given = self.unet(both, self.times[i], self.text).float().chunk(2)
        return x + (without + GUIDANCE * (given - without)) * (after - level)

    def picture(self):
        """Seconds a step, of which the host's, and of decoding."""
        self.synchronize()
        start = time.perf_counter()
        x = self.noise * self.levels[0]
        enqueued, done = 0.0, None
        for i in range(self.options.steps):
            before = time.perf_counter()
            x = self.step(x, i)
            enqueued += time.perf_counter() - before
            if self.device.type == "cuda":
                # The host stays a step ahead at most, so that its time is not that of waiting for a full queue.
                if done:
                    done.synchronize()
                done = torch.cuda.Event()
                done.record()
        self.synchronize()
        denoised = time.perf_counter()
        pixels = (self.vae(x).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()
        assert pixels.shape[1:] == (self.options.size, self.options.size, 3)
        return (denoised - start) / self.options.steps, enqueued / self.options.steps, time.perf_counter() - denoised

    def launches(self):
        """Kernels of a step."""
        if self.device.type != "cuda":
            return 0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.step(self.noise, 0)
            self.synchronize()
        return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())

    def report(self, label):
        self.picture()
        runs = [self.picture() for _ in range(self.options.runs)]
        evaluation, enqueue, decode = (1e3 * sorted(run[i] for run in runs)[len(runs) // 2] for i in range(3))
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        report = {
            "model": os.path.basename(os.path.normpath(self.options.folder)),
            "precision": self.options.dtype,
            "device": f"PyTorch {torch.__version__}, {label}, {name}",
            "width": self.options.size,
            "height": self.options.size,
            "batch": 1,
            "runs": self.options.runs,
            "evaluations": self.options.steps,
            "evaluation_ms": evaluation,
            "enqueue_ms": enqueue,
            "launches": self.launches(),
            "decode_ms": decode,
        }
        print(json.dumps(report), flush=True)
        return evaluation


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="f16", choices=DTYPES)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    with torch.inference_mode():
        benches = {layout: Bench(options, layout) for layout in LAYOUTS}
        fastest = min(benches, key=lambda layout: benches[layout].report(layout))
        if options.compile:
            bench = benches[fastest]
            bench.unet, bench.vae = torch.compile(bench.unet), torch.compile(bench.vae)
            bench.report(f"{fastest}, torch.compile")


if __name__ == "__main__":
    main()
