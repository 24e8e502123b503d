"""Names, log lines and traces of requests, as an operator gets them."""

import json
import os
import tempfile
import unittest
import urllib.request

from collector import Collector, attributes
from worker import Worker

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "sesame"
SAID = "xylophone"


class Observe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.collector = Collector()
        cls.log = tempfile.TemporaryFile("w+")
        environment = os.environ | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": cls.collector.url,
            "OTEL_SERVICE_NAME": "observed",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        options = ["--log-format", "json", "--log-level", "debug", "--api-key", SECRET]
        cls.worker = Worker(*options, stderr=cls.log, env=environment)
        cls.answers()
        # What is left is sent at the end.
        cls.worker.stop()
        cls.collector.stop()
        cls.log.seek(0)
        # Every line is one object.
        cls.lines = [json.loads(line) for line in cls.log]
        cls.log.close()

    @classmethod
    def answers(cls):
        messages = [{"role": "user", "content": f"Say {SAID} {SAID} {SAID}"}]
        chat = {"messages": messages, "max_tokens": 8, "ignore_eos": True}
        with cls.post("/v1/chat/completions", chat, "r-whole") as response:
            cls.usage = json.load(response)["usage"]
            cls.name = response.headers["X-Request-Id"]
        with cls.post("/v1/chat/completions", {**chat, "stream": True, "n": 2}, "r-stream", traceparent=PARENT) as response:
            cls.streamed = response.read().decode()
        # A client that goes away in the middle.
        with cls.post("/v1/completions", {"prompt": SAID, "max_tokens": 400, "ignore_eos": True, "stream": True}, "r-gone") as response:
            response.readline()
        cls.worker.wait_until_idle(key=SECRET)
        try:
            cls.post("/v1/chat/completions", {**chat, "temperature": -1}, "r-wrong")
        except urllib.error.HTTPError as error:
            cls.refused = error.code, error.headers["X-Request-Id"]
            error.close()

    @classmethod
    def post(cls, path, body, name, **headers):
        headers |= {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}", "X-Request-Id": name}
        request = urllib.request.Request(cls.worker.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=120)

    def of(self, name):
        """All lines of a request, and the one that tells its end."""
        lines = [line for line in self.lines if line.get("request_id") == name]
        [end] = [line for line in lines if "status" in line]
        return lines, end

    def test_names_come_back(self):
        self.assertEqual(self.name, "r-whole")
        self.assertEqual(self.refused, (400, "r-wrong"))

    def test_a_line_tells_what_a_request_took(self):
        lines, end = self.of("r-whole")
        self.assertEqual((end["level"], end["message"], end["method"]), ("INFO", "answered", "POST"))
        self.assertEqual((end["route"], end["status"], end["model"]), ("/v1/chat/completions", 200, "smollm2"))
        self.assertEqual(end["prompt_tokens"], self.usage["prompt_tokens"])
        self.assertEqual(end["cached_tokens"], 0)
        self.assertEqual(end["answer_tokens"], 8)
        self.assertGreater(end["seconds"], end["first_token_seconds"])
        self.assertGreaterEqual(end["queue_seconds"], 0)
        # The engine's own.
        told = [line["message"] for line in lines if "sequence" in line]
        self.assertEqual(told, ["its turn has come", "it is answered"])

    def test_lines_of_streams_and_mistakes(self):
        _, end = self.of("r-stream")
        # Both answers, one prompt.
        self.assertEqual((end["answer_tokens"], end["prompt_tokens"]), (16, self.usage["prompt_tokens"]))
        self.assertEqual(end["trace_id"], TRACE)
        _, end = self.of("r-wrong")
        self.assertEqual((end["status"], end["error"]), (400, "INVALID_REQUEST"))
        lines, end = self.of("r-gone")
        self.assertEqual(end["message"], "the client went away")
        self.assertIn("it is cancelled", [line["message"] for line in lines])

    def test_lines_have_no_prompts_and_no_keys(self):
        for line in self.lines:
            self.assertTrue({"timestamp", "level", "message", "target"} <= set(line), line)
            self.assertNotIn(SAID, json.dumps(line))
            self.assertNotIn(SECRET, json.dumps(line))

    def test_the_trace_of_a_stream(self):
        spans = [span for span in self.collector.spans if span.trace_id.hex() == TRACE]
        [request] = [span for span in spans if span.name == "POST /v1/chat/completions"]
        self.assertEqual(request.parent_span_id.hex(), "b7ad6b7169203331")
        self.assertEqual(attributes(request.attributes)["http.request.header.x-request-id"], ["r-stream"])
        answers = [span for span in spans if span.name == "chat smollm2"]
        self.assertEqual([span.parent_span_id for span in answers], [request.span_id] * 2)
        for answer in answers:
            told = attributes(answer.attributes)
            self.assertEqual(told["gen_ai.operation.name"], "chat")
            self.assertEqual(told["gen_ai.request.model"], "smollm2")
            self.assertEqual(told["gen_ai.request.max_tokens"], 8)
            self.assertEqual(told["gen_ai.usage.input_tokens"], self.usage["prompt_tokens"])
            self.assertEqual(told["gen_ai.usage.output_tokens"], 8)
            self.assertEqual(told["gen_ai.response.finish_reasons"], ["length"])
            first = told["gen_ai.latency.time_to_first_token"]
            self.assertTrue(0 < first < told["gen_ai.latency.e2e"], told)
            self.assertEqual([event.name for event in answer.events], ["first token"])
            parts = [span for span in spans if span.parent_span_id == answer.span_id]
            self.assertEqual([span.name for span in parts], ["queue", "prompt", "answer"])
            # One behind the other, within the whole.
            times = [time for span in parts for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
            for early, late in zip(times, times[1:]):
                self.assertLess(early - late, 2_000_000)
            self.assertLess(abs(answer.start_time_unix_nano - times[0]), 2_000_000)

    def test_traces_of_others(self):
        by_name = {}
        for span in self.collector.spans:
            by_name.setdefault(attributes(span.attributes).get("http.request.header.x-request-id", [""])[0], span)
        self.assertEqual(attributes(by_name["r-wrong"].attributes)["error.type"], "INVALID_REQUEST")
        gone = by_name["r-gone"]
        # STATUS_CODE_ERROR.
        self.assertEqual((attributes(gone.attributes)["error.type"], gone.status.code), ("client_gone", 2))
        [answer] = [span for span in self.collector.spans if span.parent_span_id == gone.span_id]
        self.assertEqual(answer.name, "text_completion smollm2")
        self.assertEqual(attributes(answer.attributes)["error.type"], "cancelled")
        paths = {attributes(span.attributes).get("url.path") for span in self.collector.spans}
        self.assertFalse(paths & {"/ready", "/health"}, "probes are not traced")
        self.assertEqual(self.collector.resources[0]["service.name"], "observed")
        self.assertEqual(self.collector.resources[0]["deployment.environment.name"], "test")
        self.assertEqual({"service.version", "service.instance.id"} - set(self.collector.resources[0]), set())
        self.assertNotIn(SAID, str(self.collector.spans))


if __name__ == "__main__":
    unittest.main()
