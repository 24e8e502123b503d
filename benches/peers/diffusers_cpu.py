#!/usr/bin/env python3
"""Times diffusers' UNet and decoder on the CPU, beside `sd-worker-rocm bench`.

    diffusers_cpu.py FOLDER SIDE [--threads N] [--runs N]

FOLDER is a pipeline of diffusers, SIDE that of the picture in pixels. The UNet gets a batch of two, as with guidance.
Prints the fastest and the median call in milliseconds, and the CPU time of the fastest.
"""

import argparse
import json
import statistics
import time

import torch
from diffusers import StableDiffusionPipeline


def measured(call, runs):
    for _ in range(3):
        call()
    walls, cpus = [], []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(1e3 * (time.perf_counter() - wall))
        cpus.append(1e3 * (time.process_time() - cpu))
    rounded = [round(x, 1) for x in (min(walls), statistics.median(walls), min(cpus))]
    return dict(zip(["best_ms", "median_ms", "cpu_ms"], rounded))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder")
    arguments.add_argument("side", type=int)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--runs", type=int, default=15)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    pipeline = StableDiffusionPipeline.from_pretrained(given.folder, torch_dtype=torch.float32)
    side = given.side // pipeline.vae_scale_factor
    latents = torch.randn(2, pipeline.unet.config.in_channels, side, side)
    text = torch.randn(2, 77, pipeline.unet.config.cross_attention_dim)
    step = torch.tensor(500)
    with torch.no_grad():
        print(json.dumps({
            "threads": given.threads,
            "evaluation": measured(lambda: pipeline.unet(latents, step, encoder_hidden_states=text), given.runs),
            "decode": measured(lambda: pipeline.vae.decode(latents[:1]), given.runs),
        }))


if __name__ == "__main__":
    main()
