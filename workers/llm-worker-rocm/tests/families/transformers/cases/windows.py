"""Windows, sinks, and caches that layers share."""

from .common import case

CASES = {}
