"""curl against the worker: what shell users and orchestrators do."""

import http.server
import json
import subprocess
import threading
import unittest

from worker import Worker, exact_cases


class Curl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--worker-id", "w1")

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def curl(self, path, *arguments):
        """Status and text."""
        command = ["curl", "-sS", "-N", "--max-time", "120", "-w", "\n%{http_code}", self.worker.url + path]
        output = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
        text, _, status = output.rpartition("\n")
        return int(status), text

    def post(self, path, body):
        return self.curl(path, "-H", "Content-Type: application/json", "-d", json.dumps(body))

    def frames(self, text):
        frames = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        self.assertEqual(frames[-1], "[DONE]")
        return [json.loads(frame) for frame in frames[:-1]]

    def test_a_chat(self):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
        status, text = self.post("/v1/chat/completions", chat)
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 8)
        status, text = self.post("/v1/chat/completions", {**chat, "stream": True})
        self.assertGreater(len(self.frames(text)), 3)

    def test_the_references_answers_as_jobs(self):
        for path in ("/v1/jobs", "/v1/inference"):
            for case in exact_cases():
                body = {"operation": "infer", "hive_id": "h", "model": "m", "prompt": case["prompt"], "max_tokens": 48, "temperature": 0}
                _, text = self.post(path, body)
                job = json.loads(text)
                status, text = self.curl(job["sse_url"])
                self.assertEqual(status, 200)
                frames = self.frames(text)
                kinds = [frame["type"] for frame in frames]
                self.assertEqual((kinds[0], kinds[-2:]), ("started", ["metrics", "end"]))
                said = "".join(frame["t"] for frame in frames if frame["type"] == "token")
                _, text = self.post("/detokenize", {"tokens": case["llama_cpp"]["tokens"]})
                self.assertTrue(said.startswith(json.loads(text)["content"]), case["prompt"])
                self.assertEqual(self.curl(job["sse_url"])[0], 404)

    def test_mistakes(self):
        status, text = self.curl("/v1/completions", "-H", "Content-Type: application/json", "-d", "{")
        self.assertEqual((status, json.loads(text)["error"]["code"]), (400, "INVALID_REQUEST"))
        self.assertEqual(self.curl("/v1/completions", "-d", "prompt=x")[0], 415)
        self.assertEqual(self.curl("/../../etc/passwd", "--path-as-is")[0], 404)
        self.assertEqual(self.curl("/v1/models/..%2f..%2fetc%2fpasswd")[0], 404)

    def test_the_state_of_the_worker(self):
        _, text = self.curl("/health")
        self.assertEqual(json.loads(text)["status"], "healthy")
        _, text = self.curl("/info")
        info = json.loads(text)
        self.assertEqual((info["id"], info["status"]), ("w1", "ready"))
        self.assertTrue(self.worker.url.endswith(f":{info['port']}"))
        _, text = self.curl("/metrics")
        self.assertIn("llm_time_to_first_token_seconds_bucket", text)


class Heartbeat(unittest.TestCase):
    def test_the_orchestrator_hears_of_the_worker(self):
        beats = []
        heard = threading.Event()

        class Queen(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                beats.append((self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                heard.set()

            def log_message(self, *_):
                pass

        queen = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Queen)
        threading.Thread(target=queen.serve_forever, daemon=True).start()
        worker = Worker("--hive-url", f"http://127.0.0.1:{queen.server_port}", "--worker-id", "w2", "--context", "256")
        try:
            self.assertTrue(heard.wait(30))
            path, beat = beats[0]
            self.assertEqual(path, "/v1/worker-heartbeat")
            self.assertEqual(beat["worker"]["id"], "w2")
            self.assertIn("timestamp", beat)
        finally:
            worker.stop()
            queen.shutdown()
            queen.server_close()


if __name__ == "__main__":
    unittest.main()
