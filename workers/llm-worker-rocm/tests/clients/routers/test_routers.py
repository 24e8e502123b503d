"""Routers that others wrote, in front of two workers of which one is stopped, and then one is killed."""

import http.client
import json
import signal
import threading
import time
import unittest
import uuid

from routers.router import LOOK, Router, answers, free_port, unknown_routes
from worker import Worker

MODEL = {"model": "smollm2", "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BEGINNINGS = [f"You are helper number {i} of {i + 3}. " + f"Rule {i}: be kind, brief and right. " * 12 for i in range(3)]
# Longer than anything here takes.
LONG = 1200


def start_worker(port=0):
    # Stopped, it refuses until its router has looked, however busy the machine is.
    stop = ("--shutdown-grace", "20", "--shutdown-linger", str(4 * LOOK))
    return Worker("--parallel", "4", "--context", "2048", *stop, port=port)


def ask(content):
    return {**MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4}


class Routed:
    """What is the same with every router; tests run by their names' order."""

    MODULE = None
    ARGUMENTS = ()

    @classmethod
    def setUpClass(cls):
        cls.workers = []
        cls.router = None
        try:
            cls.workers.extend(start_worker() for _ in range(2))
            cls.router = Router(cls.MODULE, cls.workers, *cls.ARGUMENTS)
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        if cls.router:
            cls.router.stop()
        for worker in cls.workers:
            worker.process.kill()
            worker.process.wait()
            worker.process.stdout.close()

    def answer(self, body):
        status, answer = self.router.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_1_chat(self):
        answer = self.answer(ask("Say hello."))
        self.assertTrue(answer["choices"][0]["message"]["content"])

    def test_1_stream(self):
        frames = list(self.router.stream("/v1/chat/completions", ask("Count to five.")))
        self.assertEqual(frames[-1], "[DONE]")
        deltas = [json.loads(frame)["choices"][0]["delta"].get("content") or "" for frame in frames[:-1]]
        self.assertTrue("".join(deltas))

    def test_1_tools(self):
        offer = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        body = {**ask("Is it warm in Rome?"), **offer, "max_tokens": 60}
        [call] = self.answer(body)["choices"][0]["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertIn(json.loads(call["function"]["arguments"])["city"], ("Rome", "Oslo"))

    def test_1_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        body = {**ask("Describe a person."), "response_format": form, "max_tokens": 60}
        person = json.loads(self.answer(body)["choices"][0]["message"]["content"])
        self.assertIn(person["name"], ("Ann", "Bob"))

    def test_1_wrong_model(self):
        status, answer = self.router.post("/v1/chat/completions", {**ask("x"), "model": "another"})
        self.assertEqual(status, 404, answer)

    def test_2_equal_beginnings_go_to_one_worker(self):
        usages = [
            self.answer(ask(beginning + f"Question {i}?"))["usage"] for i in range(4) for beginning in BEGINNINGS
        ]
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        # Of four requests with a beginning at least two find it.
        self.assertGreater(cached, prompt * 0.45, usages)

    def test_3_a_worker_is_stopped_and_started_again(self):
        statuses = []
        until = threading.Event()

        def client(number):
            while not until.is_set():
                # Different beginnings, for routers that go by these.
                body = {**MODEL, "prompt": f"{uuid.uuid4()} of client {number}", "max_tokens": 4}
                status, answer = self.router.post("/v1/completions", body)
                statuses.append((status, None if status == 200 else answer))

        clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
        for thread in clients:
            thread.start()
        try:
            worker = self.workers[1]
            port = int(worker.url.rsplit(":", 1)[1])
            time.sleep(0.5)
            worker.stop()
            time.sleep(0.5)
            worker = self.workers[1] = start_worker(port)
            deadline = time.monotonic() + 40
            while answers(worker) == 0:
                self.assertLess(time.monotonic(), deadline, self.router.log())
                time.sleep(0.1)
        finally:
            until.set()
            for thread in clients:
                thread.join()
        lost = [answer for status, answer in statuses if status != 200]
        self.assertEqual(lost, [])
        self.assertGreater(len(statuses), 3)

    def test_4_a_worker_is_killed_in_an_answer(self):
        # No worker was asked for a route that it does not have.
        self.assertEqual([unknown_routes(worker) for worker in self.workers], [0, 0])
        body = {**MODEL, "prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": True}
        stream = self.router.stream("/v1/completions", body)
        frames = [next(stream) for _ in range(3)]
        [worker] = [worker for worker in self.workers if worker.metric("llm_requests_running")]
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        # Cut off, or with a frame that says so; never as if it were complete.
        try:
            frames.extend(stream)
            self.assertTrue(frames[-1] != "[DONE]" or any('"error"' in frame for frame in frames), frames[-3:])
        except (http.client.HTTPException, OSError):
            pass
        # Until the router has seen it, it may fail at what it sends there; then nothing else is lost.
        deadline = time.monotonic() + 40
        served = 0
        while served < 8:
            status, answer = self.router.post("/v1/completions", {**MODEL, "prompt": f"{uuid.uuid4()}", "max_tokens": 4})
            served = served + 1 if status == 200 else 0
            if status != 200:
                self.assertIn(status, (500, 502, 503), answer)
                self.assertLess(time.monotonic(), deadline, answer)
                time.sleep(0.1)


class Smg(Routed, unittest.TestCase):
    """The Shepherd model gateway."""

    MODULE = "smg.launch_router"
    ARGUMENTS = ("--disable-tokenizer-autoload", "--load-monitor-interval", "1", "--policy", "cache_aware")


class VllmRouter(Routed, unittest.TestCase):
    """vLLM's router."""

    MODULE = "vllm_router.launch_router"
    # One request more is reason enough for the other worker.
    ARGUMENTS = ("--policy", "cache_aware", "--balance-abs-threshold", "0", "--balance-rel-threshold", "1.01")


class KvAware(unittest.TestCase):
    """vLLM's router by what the workers' caches have."""

    def test_a_prompt_goes_to_where_its_beginning_is(self):
        workers, sources, router = [], [], None
        try:
            for _ in range(2):
                events, replay = free_port(), free_port()
                worker = Worker(
                    *("--kv-events", f"tcp://127.0.0.1:{events}"),
                    *("--kv-events-replay", f"tcp://127.0.0.1:{replay}"),
                )
                workers.append(worker)
                sources += ["--kv-event-source", f"{worker.url}=tcp://127.0.0.1:{events}"]
                sources += ["--kv-event-replay-source", f"{worker.url}=tcp://127.0.0.1:{replay}"]
            router = Router(
                "vllm_router.launch_router",
                workers,
                *("--policy", "kv_aware", "--kv-event-model", "smollm2", "--kv-event-block-size", "16"),
                *sources,
            )
            # Each worker learns a prompt behind the router's back.
            for i, worker in enumerate(workers):
                status, text = worker.post("/v1/completions", {**MODEL, "prompt": BEGINNINGS[i], "max_tokens": 1})
                self.assertEqual(status, 200, text)
            for round in range(3):
                for i, worker in enumerate(workers):
                    body = {**MODEL, "prompt": BEGINNINGS[i] + f"Question {round}?", "max_tokens": 1}
                    deadline = time.monotonic() + 10
                    while True:
                        before = answers(worker)
                        status, answer = router.post("/v1/completions", body)
                        self.assertEqual(status, 200, answer)
                        usage = answer["usage"]
                        cached = usage["prompt_tokens_details"]["cached_tokens"]
                        # Events are on their way for a while.
                        if answers(worker) > before or round > 0 or time.monotonic() > deadline:
                            break
                        body["prompt"] = BEGINNINGS[i] + f"Another question, {time.monotonic()}?"
                    self.assertGreater(answers(worker), before, router.log()[-3000:])
                    self.assertGreater(cached, usage["prompt_tokens"] / 2)
        finally:
            if router:
                router.stop()
            for worker in workers:
                worker.stop()


if __name__ == "__main__":
    unittest.main()
