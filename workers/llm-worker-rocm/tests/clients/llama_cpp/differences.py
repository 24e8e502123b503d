"""The tests of llama.cpp that are expected to fail: reads differences/, and keeps the table in docs/llama-cpp.md.

    differences.py           fails if that table is not what differences/ says
    differences.py --write   brings it up to date

Each file there is for one file of tests. A key is a test, with the parameters in brackets if not all of its cases fail;
`"*"` is all tests of the file, which are then not run.
"""

import re
import sys
import tomllib
from pathlib import Path

TABLES = Path(__file__).with_name("differences")
DOCUMENT = Path(__file__).resolve().parents[5] / "docs/llama-cpp.md"
BEGIN, END = "<!-- llama.cpp's tests: begin -->", "<!-- llama.cpp's tests: end -->"
# What each kind of difference says, in the order of the document.
KINDS = {
    "deliberate": "we decided otherwise",
    "absent": "not built",
    "model": "asserts words or numbers of the suite's own model",
}


def read():
    """Entries by tests by files of tests."""
    return {path.stem + ".py": tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml"))}


def find(table, file, test):
    """What is said of a test, if it is expected to fail."""
    entries = table.get(file, {})
    function = test.split("[")[0]
    return entries.get(test) or entries.get(function) or entries.get("*")


def whole_files(table):
    return [file for file, entries in table.items() if "*" in entries]


def check(table, unit):
    """Refuses entries of a wrong form, and those of tests that there are not."""
    for file, entries in table.items():
        text = (unit / file).read_text()
        tests = re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)
        for test, entry in entries.items():
            if test != "*" and test.split("[")[0] not in tests:
                sys.exit(f"differences: there is no {test} in {file}")
            unknown = set(entry) - {"kind", "reason", "run"}
            if unknown or entry.get("kind") not in KINDS or not entry.get("reason"):
                sys.exit(f"differences: {file} {test} needs a kind of {list(KINDS)} and a reason, and may have run")


def lines(table):
    """The table of the document: tests of a file with the same reason share a line."""
    yield "| Tests | Kind | Why they fail here |"
    yield "|---|---|---|"
    for file, entries in table.items():
        grouped = {}
        for test, entry in entries.items():
            function = test.split("[")[0].removeprefix("test_")
            grouped.setdefault((entry["kind"], entry["reason"]), {})[function] = None
        for (kind, reason), tests in grouped.items():
            name = file.removeprefix("test_").removesuffix(".py")
            names = name if "*" in tests else f"{name}: {', '.join(tests)}"
            yield f"| {names} | {kind} | {reason} |"


def main():
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    updated = before + BEGIN + "\n" + "\n".join(lines(read())) + "\n" + END + after
    if "--write" in sys.argv:
        DOCUMENT.write_text(updated)
    elif updated != document:
        sys.exit("docs/llama-cpp.md does not say what differences/ does: run differences.py --write")


if __name__ == "__main__":
    main()
