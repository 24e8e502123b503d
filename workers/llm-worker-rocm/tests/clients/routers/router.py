"""A router on a port of its own, in front of workers."""

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from urllib.parse import urlsplit

# Importing these packages takes its time on a busy machine.
START_SECONDS = 90
# How often routers look after their workers, in seconds.
LOOK = 1


def free_port():
    """A port that nobody has, and that the system gives to nobody who asks for any."""
    while True:
        port = random.randrange(20000, 30000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


class Router:
    """`module` is started with `arguments`; its log is a file that `log` reads."""

    def __init__(self, module, workers, *arguments):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *(sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--prometheus-port", str(free_port()), "--health-check-interval-secs", str(LOOK)),
            *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
            # One that was not there is tried again soon.
            *("--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1"),
            *("--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "60"),
            # It tries for longer than it takes to see that a worker is gone.
            *("--retry-max-retries", "20", "--retry-initial-backoff-ms", "100", "--retry-max-backoff-ms", "500"),
            *("--worker-urls", *(worker.url for worker in workers)),
        ]
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        # Of workers on this machine no proxy knows.
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=self.output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            self.wait_until_ready(workers)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, workers):
        """Until the router answers and has looked after each worker."""
        seen = [looks(worker) for worker in workers]
        deadline = time.monotonic() + START_SECONDS
        while True:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"the router is not ready:\n{self.log()}")
            # Different beginnings, for routers that go by these.
            body = {"model": "smollm2", "prompt": f"{uuid.uuid4()}", "max_tokens": 1}
            try:
                status, _ = self.post("/v1/completions", body)
            except OSError:
                status = None
            if status == 200 and all(looks(worker) > before for worker, before in zip(workers, seen)):
                return
            time.sleep(0.2)

    def log(self):
        self.output.flush()
        self.output.seek(0)
        return self.output.read()

    def post(self, path, body):
        """Status and JSON."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return error.code, json.loads(text)
            except ValueError:
                return error.code, text

    def stream(self, path, body):
        """The lines of a stream as they come."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
        try:
            data = json.dumps({**body, "stream": True})
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"{response.status}: {response.read()}")
            while line := response.readline():
                if line := line.strip():
                    yield line.decode().removeprefix("data: ")
            # A body that was cut off looks like one that ended here.
            response.read()
            if not response.isclosed():
                raise http.client.IncompleteRead(b"")
        finally:
            connection.close()

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.output.close()


def http_answers(worker, *routes):
    """Answers of a worker on some routes."""
    _, text = worker.get("/metrics")
    lines = (line for line in text.splitlines() if line.startswith("llm_http_answers_total{"))
    named = [f'route="{route}"' for route in routes]
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if any(name in line for name in named))


def answers(worker):
    """Completions and chats."""
    return http_answers(worker, "/v1/completions", "/v1/chat/completions")


def looks(worker):
    """Times that somebody asked whether it is well."""
    return http_answers(worker, "/health")


def unknown_routes(worker):
    """Requests for routes that it does not have."""
    return http_answers(worker, "unknown")
