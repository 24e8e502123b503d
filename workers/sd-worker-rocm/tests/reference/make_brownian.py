#!/usr/bin/env python3
"""Noise of SDE samplers as k-diffusion draws it from torchsde's Brownian tree, with PyTorch's random numbers of the processor.

    pip install torchsde==0.2.6
    python3 make_brownian.py brownian.json
"""
import json
import sys
import torch
import torchsde

ENDS = (0.029167542, 14.614643)
STEPS = [(14.614643, 7.5), (14.614643, 3.2), (7.5, 1.0), (1.0, 0.97265625), (0.97265625, 0.029167542)]
SHAPES = [(2, 3, 8), (1, 4, 5)]

cases = []
for seed in (7, 2 ** 33 + 1):
    for shape in SHAPES:
        tree = torchsde.BrownianTree(torch.tensor(ENDS[0]), torch.zeros(shape), torch.tensor(ENDS[1]), entropy=seed)
        for high, low in STEPS:
            high, low = torch.tensor(high), torch.tensor(low)
            noise = -tree(low, high) / (high - low).sqrt()
            cases.append({'seed': seed, 'shape': shape, 'from': high.item(), 'to': low.item(), 'noise': noise.flatten().tolist()})
json.dump({'ends': [torch.tensor(end).item() for end in ENDS], 'cases': cases}, open(sys.argv[1], 'w'), separators=(',', ':'))
