"""Runs llama.cpp's own server tests, unchanged, against our server.

    run.py LLAMA_CPP [ARGUMENTS OF PYTEST]

LLAMA_CPP is the folder that scripts/fetch-llama-cpp prints. Arguments of pytest choose tests: `test_basic.py`,
`-k props`, `-n 0` for one process. Environment: LLM_WORKER is the program, CANDLE_ROCM_MINILM an embedding model.

| File               | Gives                                                                                    |
|--------------------|------------------------------------------------------------------------------------------|
| `utils.py`         | what the tests import as their launcher: their own, but with our server                  |
| `options.py`       | their options as ours                                                                    |
| `models.py`        | small models in place of theirs, which come from a hub                                   |
| `differences/`     | the tests that are expected to fail, and why                                             |
| `differences.py`   | reads that table; `differences.py --write` brings the one in docs/llama-cpp.md up to date   |
| `plugin.py`        | expects those failures: a test that passes though it is listed fails the run             |
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import differences
import models

HERE = Path(__file__).parent.resolve()
# Of the machine's two cores, each server takes one.
PROCESSES = "2"


def lay_out(scratch, llama_cpp):
    """The folders that tests reach by paths relative to theirs; gives the one that they run in."""
    here = scratch / "llama.cpp/tools/server/tests"
    (here / "tmp").mkdir(parents=True)
    # A copy: a link that leads out of the folder of media is not followed.
    shutil.copytree(llama_cpp / "tools/mtmd", scratch / "llama.cpp/tools/mtmd")
    (scratch / "llama.cpp/models").symlink_to(llama_cpp)
    return here


def main():
    llama_cpp, arguments = Path(sys.argv[1]).resolve(), sys.argv[2:]
    suite = llama_cpp / "tools/server/tests"
    unit = suite / "unit"
    chosen = [argument for argument in arguments if argument.startswith("test_")]
    rest = [argument for argument in arguments if argument not in chosen]
    table = differences.read()
    differences.check(table, unit)
    if not chosen:
        # What no test of which is run, as it is about something that we do not have.
        absent = differences.whole_files(table)
        chosen = [path.name for path in sorted(unit.glob("test_*.py")) if path.name not in absent]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        models.write_all(scratch)
        environment = {
            **os.environ,
            "LLAMA_CPP_SUITE": str(suite),
            "LLAMA_CPP_MODELS": str(scratch),
            # Some tests import others.
            "PYTHONPATH": os.pathsep.join([str(HERE), str(suite)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Their tests take these for the tests' own.
            "SLOW_TESTS": "0",
            # Models this small gain nothing from several threads.
            "RAYON_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "plugin", "-p", "no:cacheprovider"]
        command += ["-c", str(suite / "pytest.ini"), "--rootdir", str(suite), "-m", "not slow"]
        command += ["-q", "--no-header", "--tb=short", "--durations=10"]
        if "-n" not in rest:
            command += ["-n", PROCESSES, "--dist", "load"]
        command += [*rest, *(str(unit / name) for name in chosen)]
        return subprocess.run(command, cwd=lay_out(scratch, llama_cpp), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
