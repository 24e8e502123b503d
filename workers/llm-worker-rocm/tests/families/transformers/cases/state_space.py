"""State spaces and other recurrences."""

from .common import case

CASES = {}
