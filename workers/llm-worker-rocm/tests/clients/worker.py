"""A worker on a port of its own, for the tests of this folder.

Environment: LLM_WORKER is the program, CANDLE_ROCM_SMOLLM2 the model that it serves.
"""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = os.environ["LLM_WORKER"]
SMOLLM2 = os.environ["CANDLE_ROCM_SMOLLM2"]
FIXTURE = Path(__file__).parents[4] / "tests/fixtures/smollm2/greedy.json"
# A line for each request would hide what tests say.
os.environ.setdefault("LLM_LOG_LEVEL", "warn")
# No router looks after it, but in the tests of routers, which give an option.
os.environ.setdefault("WORKER_SHUTDOWN_LINGER", "0")
# Loading and the first pass of an unoptimised build on a busy machine.
START_SECONDS = 120


def exact_cases():
    """Prompts whose greedy answers any sound implementation gives."""
    cases = json.loads(FIXTURE.read_text())["cases"]
    return [case for case in cases if case.get("assert_exact")]


class Worker:
    def __init__(self, *arguments, model=SMOLLM2, port=0, **process):
        command = [PROGRAM, "serve", "--model", model, "--model-ref", "smollm2", "--device", "cpu", "--port", str(port)]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, **process)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (http://\S+)\n", line)
        if not found:
            raise AssertionError(f"the worker says {line!r} and ends with {self.process.wait()}")
        self.url = found[1]
        self.wait_until_ready()

    def wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while self.get("/ready")[0] != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"the worker is not ready: {self.get('/health')}")
            time.sleep(0.1)

    def get(self, path, key=None):
        request = urllib.request.Request(self.url + path)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        return self.send(request)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return self.send(request)

    @staticmethod
    def send(request):
        """Status and text."""
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, key=None):
        """The value of a figure without labels."""
        _, text = self.get("/metrics", key)
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"there is no {name} in\n{text}")

    def wait_until_idle(self, seconds=30, key=None):
        deadline = time.monotonic() + seconds
        while any(self.metric(name, key) for name in ("llm_requests_running", "llm_requests_waiting")):
            if time.monotonic() > deadline:
                raise AssertionError("requests run on without clients")
            time.sleep(0.05)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """Ends the worker as an orchestrator does, and checks that it ends well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        if code != 0:
            raise AssertionError(f"the worker ended with {code}")
