"""A tiny cross-encoder with random weights: the one that tests/families compares with transformers."""

import json
from pathlib import Path

import tiny_vision

CASE = json.loads((Path(__file__).parents[1] / "families/transformers/bert-ranker.json").read_text())


def write(folder):
    """Writes the model's folder."""
    tiny_vision.write(folder, {**CASE, "spelled": {}, "processor": {}}, "")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    special = lambda text, kind: {"SpecialToken": {"id": text, "type_id": kind}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    single = [special("<s>", 0), text("A", 0), special("</s>", 0)]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special("</s>", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]} for number, name in [(1, "<s>"), (2, "</s>")]
        },
    }
    file.write_text(json.dumps(tokenizer))
