"""A gated delta rule or short convolutions."""

from .common import case

CASES = {}
