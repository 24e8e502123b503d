"""Files and batches by OpenAI's and Anthropic's own clients, and the command `batch` against a live server."""

import json
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import anthropic
import openai

from worker import PROGRAM, Worker

CHAT = [{"role": "user", "content": "Count to five."}]


def line(custom_id, **body):
    body = {"messages": CHAT, "max_tokens": 4, "temperature": 0, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.start()

    @classmethod
    def start(cls):
        cls.worker = Worker("--files", cls.folder.name, "--api-key", "secret", "--api-key", "other")
        more = {"max_retries": 0, "timeout": 120}
        cls.client = openai.OpenAI(base_url=cls.worker.url + "/v1", api_key="secret", **more)
        cls.anthropic = anthropic.Anthropic(base_url=cls.worker.url, api_key="secret", **more)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()
        cls.folder.cleanup()

    def upload(self, lines, client=None):
        content = "\n".join(lines).encode()
        return (client or self.client).files.create(file=("in.jsonl", content), purpose="batch")

    def begin(self, lines, **more):
        fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
        return self.client.batches.create(input_file_id=self.upload(lines).id, **fields)

    def until_end(self, batch, seconds=120):
        deadline = time.monotonic() + seconds
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            self.assertLess(time.monotonic(), deadline, batch)
            time.sleep(0.1)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def results(self, file):
        return [json.loads(line) for line in self.client.files.content(file).text.splitlines()]

    def test_a_batch_answers_as_the_route_does(self):
        lines = [line("a"), line("b", model="absent"), line("c", max_tokens=2)]
        done = self.until_end(self.begin(lines, metadata={"name": "night"}))
        self.assertEqual((done.status, done.metadata), ("completed", {"name": "night"}))
        counts = done.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (3, 2, 1))
        answers = {result["custom_id"]: result["response"]["body"] for result in self.results(done.output_file_id)}
        self.assertEqual(sorted(answers), ["a", "c"])
        direct = self.client.chat.completions.create(model="smollm2", messages=CHAT, max_tokens=4, temperature=0)
        self.assertEqual(answers["a"]["choices"][0]["message"]["content"], direct.choices[0].message.content)
        [error] = self.results(done.error_file_id)
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("b", 404))
        self.assertIn(done.id, [batch.id for batch in self.client.batches.list(limit=1)])

    def test_files(self):
        file = self.upload(["x"])
        self.assertEqual((file.filename, file.bytes, file.purpose), ("in.jsonl", 1, "batch"))
        self.assertEqual(self.client.files.retrieve(file.id).id, file.id)
        self.assertIn(file.id, [other.id for other in self.client.files.list(limit=2)])
        self.assertEqual(self.client.files.content(file.id).read(), b"x")
        stranger = self.client.with_options(api_key="other")
        with self.assertRaises(openai.NotFoundError):
            stranger.files.content(file.id)
        with self.assertRaises(openai.NotFoundError):
            stranger.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        with self.assertRaises(openai.BadRequestError):
            self.client.files.create(file=b"x", purpose="fine-tune")
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)

    def test_wrong_lines_and_a_cancelled_batch(self):
        failed = self.until_end(self.begin([line("a"), line("a"), "{"]))
        self.assertEqual(failed.status, "failed")
        self.assertEqual([error.line for error in failed.errors.data], [2, 3])
        batch = self.begin([line(str(i), max_tokens=200) for i in range(200)])
        self.client.batches.cancel(batch.id)
        self.assertEqual(self.until_end(batch).status, "cancelled")

    def test_a_batch_outlives_its_server(self):
        batch = self.begin([line(str(i), max_tokens=20) for i in range(40)])
        while self.client.batches.retrieve(batch.id).request_counts.completed < 1:
            time.sleep(0.05)
        self.worker.process.kill()
        self.worker.process.wait()
        self.worker.process.stdout.close()
        self.start()
        done = self.until_end(batch)
        counts = done.request_counts
        self.assertEqual((done.status, counts.completed, counts.failed), ("completed", 40, 0))
        ids = [result["custom_id"] for result in self.results(done.output_file_id)]
        self.assertEqual(sorted(ids, key=int), [str(i) for i in range(40)])

    def test_anthropics_batches(self):
        def request(custom_id, **more):
            params = {"model": "smollm2", "max_tokens": 4, "temperature": 0, "messages": CHAT, **more}
            return {"custom_id": custom_id, "params": params}

        batches = self.anthropic.messages.batches
        batch = batches.create(requests=[request("a"), request("b", model="absent")])
        deadline = time.monotonic() + 120
        while batch.processing_status != "ended":
            self.assertLess(time.monotonic(), deadline, batch)
            time.sleep(0.1)
            batch = batches.retrieve(batch.id)
        counts = batch.request_counts
        self.assertEqual((counts.succeeded, counts.errored, counts.processing), (1, 1, 0))
        results = {result.custom_id: result.result for result in batches.results(batch.id)}
        self.assertEqual(results["a"].message.usage.output_tokens, 4)
        self.assertEqual((results["b"].type, results["b"].error.error.type), ("errored", "not_found_error"))
        self.assertIn(batch.id, [other.id for other in batches.list(limit=1)])
        batches.delete(batch.id)
        with self.assertRaises(anthropic.NotFoundError):
            batches.retrieve(batch.id)
        with self.assertRaisesRegex(anthropic.BadRequestError, "requests.1"):
            batches.create(requests=[request("a"), request("a")])
        long = batches.create(requests=[request(str(i), max_tokens=200) for i in range(200)])
        batches.cancel(long.id)
        while batches.retrieve(long.id).processing_status != "ended":
            time.sleep(0.1)
        results = [result.result.type for result in batches.results(long.id)]
        self.assertEqual(len(results), 200)
        self.assertIn("canceled", results)

    def test_the_command_asks_a_server(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            source.write_text("\n".join(line(str(i)) for i in range(6)))
            command = [PROGRAM, "batch", source, "-o", target, "--url", self.worker.url, "--api-key", "secret", "--json"]
            environment = {key: value for key, value in os.environ.items() if not key.startswith("LLM_")}
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            self.assertEqual(json.loads(ended.stdout)["answered"], 6)
            texts = [json.loads(result) for result in target.read_text().splitlines()]
            texts = {result["response"]["body"]["choices"][0]["message"]["content"] for result in texts}
            self.assertEqual(len(texts), 1)


if __name__ == "__main__":
    unittest.main()
