"""The workers as programs, for the tests of this folder.

Environment: LLM_WORKER and SD_WORKER are the programs, CANDLE_ROCM_SMOLLM2 a language model, HELM the program helm.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

DEPLOY = Path(__file__).parents[1]
REPOSITORY = DEPLOY.parent
IMAGES = str(REPOSITORY / "workers/sd-worker-rocm/models/tiny-shapes-sd")
LLM_WORKER = os.environ["LLM_WORKER"]
SD_WORKER = os.environ["SD_WORKER"]
SMOLLM2 = os.environ["CANDLE_ROCM_SMOLLM2"]
HELM = os.environ["HELM"]
# Loading in an unoptimised build on a busy machine.
START_SECONDS = 120


def run(*command, **options):
    """The output of a program that has to succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def ask(url, body=None, headers=None):
    """Status, headers and text; 0 where there is no answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (headers or {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
        return 0, {}, ""


def wait_for(what, done, seconds=START_SECONDS):
    deadline = time.monotonic() + seconds
    while not (result := done()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.1)
    return result


class Program:
    """A worker on a port of its own."""

    def __init__(self, *command, port=0, level="warn", **options):
        command = [*command, "--device", "cpu", "--port", str(port), "--log-level", level]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        self.told = False
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (http://\S+)\n", line)
        if not found:
            raise AssertionError(f"the worker says {line!r} and ends with {self.process.wait()}")
        self.url = found[1]

    @classmethod
    def llm(cls, *arguments, **options):
        return cls(LLM_WORKER, "serve", "--model", SMOLLM2, *arguments, **options)

    @classmethod
    def images(cls, *arguments, **options):
        return cls(SD_WORKER, "serve", "--model", IMAGES, *arguments, **options)

    def ready(self):
        wait_for("readiness", lambda: ask(self.url + "/ready")[0] == 200)
        return self

    def ask(self, path, body=None, headers=None):
        return ask(self.url + path, body, headers)

    def tell_to_stop(self):
        """Once: told twice, a worker ends without finishing what it has begun."""
        if not self.told and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.told = True

    def stop(self):
        self.tell_to_stop()
        code = self.process.wait(60)
        self.process.stdout.close()
        if code != 0:
            raise AssertionError(f"the worker ended with {code}")


class Options:
    """What `serve` of a program can be told."""

    def __init__(self, program, prefix):
        help = run(program, "serve", "--help")
        self.flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", help))
        self.prefix = prefix
        self.variables = set(re.findall(r"\[env: ([A-Z0-9_]+)", help))

    def check(self, test, arguments, environment):
        """That all of them exist."""
        for argument in arguments:
            if argument.startswith("--"):
                test.assertIn(argument.split("=")[0], self.flags)
        # What libraries read, besides.
        documented = (REPOSITORY / "docs/environment.md").read_text() + (REPOSITORY / "docs/llm.md").read_text()
        for name in environment:
            flag = "--" + name.removeprefix(self.prefix).lower().replace("_", "-")
            known = name in self.variables or (name.startswith(self.prefix) and flag in self.flags)
            test.assertTrue(known or f"`{name}`" in documented or name.startswith("OTEL_"), name)


def llm_options():
    return Options(LLM_WORKER, "LLM_")


def images_options():
    return Options(SD_WORKER, "SD_")
