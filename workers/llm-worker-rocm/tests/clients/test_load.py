"""Many clients that come and go as they like: nothing may be lost and nothing kept."""

import collections
import json
import random
import socket
import threading
import time
import unittest
from urllib.parse import urlsplit

from worker import Worker, exact_cases

CLIENTS = 64
SECONDS = 20
PROMPTS = ["Once upon a time", "The capital of France is", "One, two, three, " * 30]


class Client(threading.Thread):
    """Sends requests until the time is over; goes away in the middle of about half of them."""

    def __init__(self, address, seed, until, outcomes):
        super().__init__()
        self.address = address
        self.random = random.Random(seed)
        self.until = until
        self.outcomes = outcomes

    def run(self):
        while time.monotonic() < self.until:
            try:
                outcome = self.request()
            except Exception as error:  # the test reports it
                outcome = f"failed: {error!r}"
            self.outcomes[outcome] += 1
            if outcome == "refused":
                time.sleep(self.random.uniform(0.05, 0.3))

    def request(self):
        stream = self.random.random() < 0.7
        body = json.dumps({
            "prompt": self.random.choice(PROMPTS),
            "max_tokens": self.random.randint(1, 24),
            "stream": stream,
            "n": self.random.choice((1, 1, 1, 2)),
            "stop": self.random.choice((None, ".", "the")),
        })
        patience = self.random.choice((None, None, self.random.uniform(0, 2)))
        with socket.create_connection(self.address, timeout=120) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: worker\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            gives_up = None if patience is None else time.monotonic() + patience
            text = b""
            while True:
                if gives_up is not None:
                    left = gives_up - time.monotonic()
                    if left <= 0:
                        return "gone"
                    connection.settimeout(left)
                try:
                    more = connection.recv(65536)
                except TimeoutError:
                    if gives_up is None:
                        raise
                    return "gone"
                if not more:
                    break
                text += more
        return self.outcome(text.decode(errors="replace"), stream)

    @staticmethod
    def outcome(text, stream):
        status = text[9:12]
        if status == "429":
            return "refused" if "retry-after" in text.lower() else "429 without Retry-After"
        if status != "200":
            return f"failed: {text}"
        if stream and "data: [DONE]" not in text:
            return "a stream without an end"
        if stream and '"error"' in text:
            return f"failed: {text}"
        return "answered"


class Load(unittest.TestCase):
    def test_clients_that_come_and_go(self):
        worker = Worker("--parallel", "8", "--queue", "24", "--context", "512", "--kv-blocks", "96")
        try:
            url = urlsplit(worker.url)
            files = worker.open_files()
            outcomes = collections.Counter()
            until = time.monotonic() + SECONDS
            clients = [Client((url.hostname, url.port), seed, until, outcomes) for seed in range(CLIENTS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            print(dict(outcomes), flush=True)
            self.assertEqual(set(outcomes) - {"answered", "refused", "gone"}, set())
            self.assertGreater(outcomes["answered"], 0)
            self.assertGreater(outcomes["gone"], 0)
            worker.wait_until_idle()
            # No block, no connection and no place in the queue is kept.
            self.assertEqual(worker.metric("llm_kv_blocks_used"), 0)
            deadline = time.monotonic() + 10
            while worker.open_files() > files and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertLessEqual(worker.open_files(), files)
            self.assertEqual(worker.get("/health")[0], 200)
            for case in exact_cases():
                body = {"prompt": case["prompt"], "temperature": 0, "max_tokens": 48, "return_tokens": True}
                status, text = worker.post("/v1/completions", body)
                self.assertEqual(status, 200, text)
                expected = case["llama_cpp"]["tokens"]
                self.assertEqual(json.loads(text)["choices"][0]["tokens"][: len(expected)], expected)
        finally:
            worker.stop()


if __name__ == "__main__":
    unittest.main()
