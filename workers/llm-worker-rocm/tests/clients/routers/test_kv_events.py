"""Events of the cache, read as vLLM's subscribers read them, against what answers say of the cache."""

import json
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import msgpack
import zmq

import tiny_whisper
from routers.router import free_port
from worker import PROGRAM, SMOLLM2, Worker

TOPIC = "kv@127.0.0.1@smollm2"
BLOCK = 16
END = (-1).to_bytes(8, "big", signed=True)
# Each two begin alike.
PROMPTS = [
    f"Chapter {i // 2}. " + f"Line {i // 2} of a long text that is the same for two. " * 8 + f"And now number {i}."
    for i in range(12)
]


class Cache:
    """What a subscriber knows of a worker's cache."""

    def __init__(self):
        self.blocks = {}

    def apply(self, payload):
        at, events, rank = msgpack.unpackb(payload)
        assert rank == 0 and abs(at - time.time()) < 600, (at, rank)
        for event in events:
            kind = event.pop("type")
            if kind == "AllBlocksCleared":
                self.blocks.clear()
            elif kind == "BlockRemoved":
                assert event["medium"] == "GPU"
                for block in event["block_hashes"]:
                    del self.blocks[block]
            else:
                assert kind == "BlockStored" and event["block_size"] == BLOCK, event
                parent, tokens = event["parent_block_hash"], event["token_ids"]
                assert len(tokens) == BLOCK * len(event["block_hashes"]), event
                for i, block in enumerate(event["block_hashes"]):
                    assert block not in self.blocks and block != 0, event
                    self.blocks[block] = (parent, tuple(tokens[i * BLOCK : (i + 1) * BLOCK]))
                    parent = block

    def known(self, tokens):
        """Tokens that the cache has of a prompt: all but the last may be."""
        children = {key: block for block, key in self.blocks.items()}
        parent, count = None, 0
        while count + BLOCK < len(tokens):
            parent = children.get((parent, tuple(tokens[count : count + BLOCK])))
            if parent is None:
                break
            count += BLOCK
        return count


class KvEvents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.endpoint, cls.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        # Room for fewer prompts than are asked.
        cls.worker = Worker(
            *("--kv-events", cls.endpoint, "--kv-events-replay", cls.replay, "--kv-events-topic", TOPIC),
            *("--kv-blocks", "33", "--context", "512"),
        )
        cls.context = zmq.Context()

    @classmethod
    def tearDownClass(cls):
        cls.context.destroy(linger=0)
        cls.worker.stop()

    def subscribe(self, topic):
        subscriber = self.context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, topic)
        subscriber.setsockopt(zmq.HEARTBEAT_IVL, 200)
        subscriber.setsockopt(zmq.RCVTIMEO, 5000)
        subscriber.connect(self.endpoint)
        return subscriber

    def replayed(self, first):
        """Messages from a number on."""
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.RCVTIMEO, 5000)
            dealer.connect(self.replay)
            dealer.send_multipart([b"", first.to_bytes(8, "big")])
            messages = []
            while True:
                empty, number, payload = dealer.recv_multipart()
                self.assertEqual(empty, b"")
                if number == END:
                    return messages
                messages.append((int.from_bytes(number, "big"), payload))

    def ask(self, prompt):
        """Its tokens, and how many of them the cache had."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        status, text = self.worker.post("/v1/completions", body)
        self.assertEqual(status, 200, text)
        cached = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
        status, text = self.worker.post("/v1/completions/render", body)
        self.assertEqual(status, 200, text)
        return json.loads(text)[0]["token_ids"], cached

    def read_until(self, subscriber, cache, last, done):
        """Reads what comes until something is so; gives the last number."""
        while not done():
            topic, number, payload = subscriber.recv_multipart()
            self.assertEqual(topic, TOPIC.encode())
            number = int.from_bytes(number, "big")
            self.assertEqual(number, last + 1)
            cache.apply(payload)
            last = number
        return last

    def test_events_tell_what_answers_tell(self):
        cache, other = Cache(), Cache()
        with self.subscribe(b"kv@") as subscriber, self.subscribe(b"else") as elsewhere:
            # The first message may be older than this subscriber, whose subscription takes a moment.
            time.sleep(0.5)
            last = -1
            for number, payload in self.replayed(0):
                self.assertEqual(number, last + 1)
                cache.apply(payload)
                last = number
            self.assertGreaterEqual(last, 0)
            found = removed = 0
            for prompt in PROMPTS + PROMPTS[::-1]:
                before = dict(cache.blocks)
                tokens, cached = self.ask(prompt)
                # What was heard before it was asked.
                self.assertEqual(cached, cache.known(tokens), prompt)
                # Its last block comes after what was removed for it.
                whole = (len(tokens) - 1) // BLOCK * BLOCK
                last = self.read_until(subscriber, cache, last, lambda: cache.known(tokens) == whole)
                found += cached > 0
                removed += any(block not in cache.blocks for block in before)
            self.assertGreater(found, 3)
            self.assertGreater(removed, 3)
            # A sleeping subscriber's gap, filled; and one that knows nothing.
            for number, payload in self.replayed(0):
                other.apply(payload)
            self.assertEqual(other.blocks, cache.blocks)
            self.assertEqual([number for number, _ in self.replayed(last)], [last])
            self.assertEqual(self.replayed(last + 1), [])
            # Weights and cache are given back.
            self.assertEqual(self.worker.post("/sleep", {})[0], 200)
            self.read_until(subscriber, cache, last, lambda: not cache.blocks)
            self.assertEqual(elsewhere.poll(100), 0)
        self.assertEqual(self.worker.metric("llm_kv_event_batches_dropped_total"), 0)

    def test_a_stranger_is_let_go(self):
        for endpoint in (self.endpoint, self.replay):
            host, port = endpoint.removeprefix("tcp://").split(":")
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nUser-Agent: stranger\r\n\r\n")
                try:
                    while connection.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        # Others are answered on.
        self.assertTrue(self.replayed(0))

    def test_what_cannot_be_is_refused(self):
        endpoint = ["--kv-events", f"tcp://127.0.0.1:{free_port()}"]
        serve = [PROGRAM, "serve", "--device", "cpu", "--port", "0", "--model"]
        with tempfile.TemporaryDirectory() as folder:
            tiny_whisper.write(Path(folder))
            for command, reason in [
                ([*serve, SMOLLM2, *endpoint, "--no-prefix-cache"], "cannot be used with"),
                ([*serve, SMOLLM2, "--kv-events", self.endpoint], "in use"),
                ([*serve, SMOLLM2, "--kv-events", "5557"], "tcp://HOST:PORT"),
                ([*serve, folder, *endpoint], "generates no text"),
            ]:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(reason, ended.stderr)


if __name__ == "__main__":
    unittest.main()
