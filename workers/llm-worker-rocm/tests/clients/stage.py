"""A server that plays scripts, for the page: its files come from a real worker, what models say from here.

What it answers is told by the first word of the last message; `requests` has what was asked.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOL_CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}


class Stage:
    def __init__(self, pages):
        """`pages` gives status, headers and bytes of a page's path."""
        self.pages = pages
        self.reset()
        stage = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                stage.get(self)

            def do_POST(self):
                length = int(self.headers.get("Content-Length", 0))
                stage.post(self, json.loads(self.rfile.read(length) or b"{}"))

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self):
        self.key = None
        self.models = [{"id": "tiny", "object": "model", "text": {"n_ctx": 4096}}]
        self.adapters = []
        self.modalities = {"vision": True, "audio": True}
        self.texts = {}
        # Bodies of requests, and "gone" for each client that went away.
        self.requests = []
        # Paths that were read.
        self.asked = []
        # Thoughts wait until it is set.
        self.gate = threading.Event()
        self.gate.set()
        self.health = (200, {"status": "healthy", "model": "tiny", "device": {"name": "cpu", "description": "A small stage"}})

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    # Requests ---------------------------------------------------------------------------------

    def get(self, handler):
        self.asked.append(handler.path)
        path = handler.path.split("?")[0]
        if path == "/health":
            return self.json(handler, *self.health)
        if path == "/" or path.startswith("/page/"):
            status, headers, body = self.pages(path)
            return self.answer(handler, status, headers, body)
        if not self.allowed(handler):
            return None
        answers = {
            "/v1/models": {"object": "list", "data": self.models},
            "/lora-adapters": self.adapters,
            "/props": {
                "n_ctx": 4096,
                "modalities": self.modalities,
                "default_generation_settings": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "samplers": ["penalties", "top_k", "temperature"]},
            },
        }
        if path not in answers:
            return self.json(handler, 404, {"error": {"message": f"there is no {path}"}})
        return self.json(handler, 200, answers[path])

    def allowed(self, handler):
        if self.key is None or handler.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        message = "this server asks for a key: send the header Authorization: Bearer KEY"
        self.json(handler, 401, {"error": {"message": message, "param": None}})
        return False

    @staticmethod
    def answer(handler, status, headers, body):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def json(self, handler, status, body):
        self.answer(handler, status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def post(self, handler, body):
        if not self.allowed(handler):
            return
        self.requests.append(body)
        text = self.last_text(body)
        if text.startswith("refuse"):
            param = text.split()[1]
            error = {"message": f"{param} 7 is not from 0 to 2", "param": param}
            return self.json(handler, 400, {"error": error})
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            self.stream(handler, text, body)
            handler.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.requests.append("gone")
            handler.close_connection = True

    @staticmethod
    def last_text(body):
        content = next(m["content"] for m in reversed(body["messages"]) if m["role"] == "user")
        return content if isinstance(content, str) else content[-1]["text"]

    # Scripts ----------------------------------------------------------------------------------

    def stream(self, handler, text, body):
        write = lambda value: self.write(handler, f"data: {json.dumps(value)}\n\n")
        delta = lambda **fields: write({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})
        delta(role="assistant", content="")
        word, _, rest = text.partition(" ")
        word = word.rstrip(":")
        if text in self.texts:
            word, rest = "show", text
        last = body["messages"][-1]
        finish, parts = "stop", 1
        if last["role"] == "tool":
            delta(content=f"The tool says: {last['content']}")
        elif last["role"] == "assistant":
            delta(content=" and goes on")
        elif word == "think":
            write({"choices": [], "prompt_progress": {"total": 80, "cache": 0, "processed": 40, "time_ms": 3}})
            self.gate.wait(30)
            for part in ("Let me **think** ", "about it."):
                delta(reasoning_content=part)
            delta(content=rest or "Thought through.")
        elif word == "tool":
            delta(content="I look it up.")
            delta(tool_calls=[TOOL_CALL])
            for part in ('{"city": ', '"Oslo", "days": 2}'):
                delta(tool_calls=[{"index": 0, "function": {"arguments": part}}])
            finish = "tool_calls"
        elif word == "slow":
            for index in range(400):
                delta(content=f"word{index} ")
                time.sleep(0.02)
        elif word == "break":
            delta(content="Half an")
            return
        elif word == "length":
            delta(content="It begins")
            finish = "length"
        elif word == "show":
            shown = self.texts[rest]
            parts = max(1, len(shown) // 24)
            for index in range(0, len(shown), 24):
                delta(content=shown[index : index + 24])
        else:
            delta(content=f"You said: {text}")
        timings = {
            "prompt_n": 30,
            "cache_n": 12,
            "prompt_ms": 120.0,
            "predicted_n": parts,
            "predicted_per_second": 31.4,
        }
        write({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "timings": timings})
        self.write(handler, "data: [DONE]\n\n")

    @staticmethod
    def write(handler, text):
        data = text.encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.flush()


def of_worker(url):
    """The page's files as a worker gives them."""

    def pages(path):
        request = urllib.request.Request(url + path, headers={"Accept-Encoding": "gzip"})
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            kept = ("Content-Type", "Content-Encoding", "Content-Security-Policy", "Cache-Control", "ETag", "X-Content-Type-Options")
            headers = {name: response.headers[name] for name in kept if response.headers[name]}
            return response.status, headers, response.read()

    return pages
