"""An image server on a port of its own over the tests' model, for the tests of this folder.

Environment: SD_WORKER is the program.
"""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

PROGRAM = os.environ["SD_WORKER"]
# Loading in an unoptimised build on a busy machine.
START_SECONDS = 120
# The smallest pictures that the model draws, in the fewest steps.
SIDE = 64
STEPS = 2
# No router looks after it.
os.environ.setdefault("WORKER_SHUTDOWN_LINGER", "0")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/tiny-shapes-sd")


class Worker:
    def __init__(self, *arguments):
        command = [PROGRAM, "--log-level", "warn", "serve", "--model", MODEL, "--device", "cpu", "--port", "0"]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on http://(\S+):(\d+)\n", line)
        if not found:
            raise AssertionError(f"the worker says {line!r} and ends with {self.process.wait()}")
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"
        deadline = time.monotonic() + START_SECONDS
        while self.get("/ready")[0] != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"the worker is not ready: {self.get('/health')}")
            time.sleep(0.05)

    def get(self, path):
        """Status and JSON, or None for what is none."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, None

    def stop(self):
        """Ends the worker as an orchestrator does, and checks that it ends well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        if code != 0:
            raise AssertionError(f"the worker ended with {code}")
