"""Weights of tiny models, tokens, and how numbers are written: what generators share."""

import math

import numpy as np

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
    """Matrices keep the size of what they multiply, norms are near `norm`, other vectors near 0, bounds some way from it."""
    if not shape and name.endswith(("_min", "_max")):
        scale, center = 0.2, -1.5 if name.endswith("_min") else 1.5
    elif len(shape) > 1:
        scale, center = 1.7 / math.sqrt(shape[-1]), 0.0
    elif "norm" in name and name.endswith("weight"):
        scale, center = 0.3, norm
    else:
        scale, center = 0.2, 0.0
    values = center + scale * numbers(name, math.prod(shape))
    return values.astype(np.float32).reshape(shape)


def rounded(values):
    return [float(f"{v:.6g}") for v in values.tolist()]
