"""Holds the table of snippets that the worker's Jinja is tested with against Jinja2, as transformers sets it up."""

import json
import pathlib
import unittest

import jinja2.ext
from transformers.utils.chat_template_utils import _compile_jinja_template

FOLDER = pathlib.Path(__file__).parent.parent / "jinja"


def changing():
    """An environment in which lists and mappings can be changed, which the sandbox of transformers refuses."""
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])


class Snippets(unittest.TestCase):
    def test_snippets(self):
        variables = json.loads((FOLDER / "variables.json").read_text())
        for line in (FOLDER / "snippets.jsonl").read_text().split("\n")[:-1]:
            snippet = json.loads(line)
            source = snippet["template"]
            with self.subTest(source):
                try:
                    if snippet.get("changes"):
                        template = changing().from_string(source)
                    else:
                        template = _compile_jinja_template(source)
                    # Each has variables of its own, as some change them.
                    text = template.render(**json.loads(json.dumps(variables)))
                except Exception as fault:  # Any of Python's.
                    self.assertTrue(snippet.get("error"), fault)
                else:
                    self.assertEqual(text, snippet.get("text"))
