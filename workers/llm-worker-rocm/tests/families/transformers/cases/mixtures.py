"""Many experts beside the usual attention."""

from .common import case

CASES = {}
