"""Latent vectors in place of keys and values."""

from .common import case

CASES = {}
