"""What the image worker tells of its jobs; workers/llm-worker-rocm/tests/clients has the language worker's test."""

import json
import os
import sys
import tempfile
import unittest

from programs import REPOSITORY, Program, wait_for

sys.path.append(str(REPOSITORY / "workers/llm-worker-rocm/tests/clients"))
from collector import Collector, attributes  # noqa: E402

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SAID = "xylophone"


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.collector = Collector()
        with tempfile.TemporaryFile("w+") as log:
            environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": cls.collector.url}
            options = {"env": environment, "stderr": log, "level": "debug"}
            worker = Program.images("--log-format", "json", **options).ready()
            picture = {"prompt": SAID, "steps": 2, "width": 64, "height": 64}
            _, cls.made, _ = worker.ask("/sdapi/v1/txt2img", picture, {"X-Request-Id": "r-picture"})
            job = picture | {"operation": "image_generation"}
            status, cls.taken, text = worker.ask("/v1/jobs", job, {"X-Request-Id": "r-job", "traceparent": PARENT})
            cls.job = json.loads(text)["job_id"]
            # It goes on behind its answer.
            wait_for("the job", lambda: '"completed"' in worker.ask(f"/v1/jobs/{cls.job}")[2])
            worker.stop()
            log.seek(0)
            cls.lines = [json.loads(line) for line in log]
        cls.collector.stop()

    def test_answers_name_jobs(self):
        self.assertEqual(self.taken["X-Job-Id"], self.job)
        self.assertEqual((self.taken["X-Request-Id"], self.made["X-Request-Id"]), ("r-job", "r-picture"))

    def test_lines_of_a_job_have_its_requests_name(self):
        lines = [line for line in self.lines if line.get("request_id") == "r-job"]
        told = [(line["message"], line.get("job")) for line in lines]
        self.assertIn(("answered", self.job), told)
        self.assertIn(("its turn has come", self.job), told)
        self.assertIn(("it is done", self.job), told)
        [end] = [line for line in self.lines if line.get("request_id") == "r-picture" and "status" in line]
        self.assertEqual((end["status"], end["model"], end["route"]), (200, "tiny-shapes-sd", "/sdapi/v1/txt2img"))
        self.assertNotIn(SAID, json.dumps(self.lines))

    def test_the_trace_of_a_job(self):
        spans = [span for span in self.collector.spans if span.trace_id.hex() == TRACE]
        by_name = {span.name: span for span in spans}
        request, job = by_name["POST /v1/jobs"], by_name["generate_content tiny-shapes-sd"]
        self.assertEqual(request.parent_span_id.hex(), "00f067aa0ba902b7")
        self.assertEqual(job.parent_span_id, request.span_id)
        told = attributes(job.attributes)
        self.assertEqual((told["candle_rocm.job"], told["candle_rocm.steps"]), (self.job, 2))
        self.assertEqual(told["gen_ai.output.type"], "image")
        parts = [span for span in spans if span.parent_span_id == job.span_id]
        self.assertEqual([span.name for span in parts], ["queue", "loras", "encode", "denoise", "decode"])
        for part in parts:
            self.assertLessEqual(part.end_time_unix_nano, job.end_time_unix_nano + 2_000_000)


if __name__ == "__main__":
    unittest.main()
