"""What llama.cpp's server tests import as `utils`: their own module, but each server is ours.

Theirs brings the requests, the streams and the presets; only starting differs.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import models
import options

SUITE = Path(os.environ["LLAMA_CPP_SUITE"])
# An unoptimised build on a busy machine.
START_SECONDS = 60


def load_theirs():
    # It fetches models with this, which nothing here does.
    sys.modules.setdefault("wget", types.ModuleType("wget"))
    spec = importlib.util.spec_from_file_location("llama_cpp_utils", SUITE / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


theirs = load_theirs()
globals().update({name: value for name, value in vars(theirs).items() if not name.startswith("_")})
TMP_DIR = "tmp"


class ServerProcess(theirs.ServerProcess):
    """Their server's options, and our server."""

    # A free one the first time, and the same after that.
    own_port = 0

    def start(self, timeout_seconds=START_SECONDS):
        command = [os.environ["LLM_WORKER"], *options.arguments(self)]
        print("starting", " ".join(command))
        path = self.log_path or tempfile.NamedTemporaryFile(dir=TMP_DIR, suffix=".log", delete=False).name
        with open(path, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=options.environment(self))
        theirs.server_instances.add(self)
        deadline = time.monotonic() + min(timeout_seconds, START_SECONDS)
        while not self.is_up(Path(path)):
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server is not up, {code=}: {Path(path).read_text()[-2000:]}")
            time.sleep(0.01)

    def is_up(self, log):
        found = re.search(r"^listening on http://\S+:(\d+)$", log.read_text(), re.MULTILINE)
        if not found:
            return False
        self.server_port = self.own_port = int(found[1])
        try:
            return theirs.requests.get(self.make_url("/health"), timeout=10).status_code == 200
        except theirs.requests.exceptions.ConnectionError:
            return False


class ServerPreset(theirs.ServerPreset):
    """Their presets; the servers are ours."""


theirs.ServerProcess = ServerProcess


def download_file(url, output_file_path=None):
    """The file of ours that stands in for one on a hub."""
    return str(models.of_address(url))


def get(url, *arguments, get=theirs.requests.get, **more):
    """Pictures on a hub are ours; anything else is asked for."""
    if not url.startswith("https://huggingface.co/"):
        return get(url, *arguments, **more)
    response = theirs.requests.Response()
    response.status_code = 200
    response._content = models.picture(url)
    return response


theirs.requests.get = get
