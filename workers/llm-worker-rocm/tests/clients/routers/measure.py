"""How much a router costs and a second worker gives: the same load on one worker, on one behind a router, on two.

    LLM_WORKER=target/release/llm-worker-rocm CANDLE_ROCM_SMOLLM2=$(scripts/fetch-smollm2) \
        python -m routers.measure --seconds 30 --clients 8 --threads 1

in the folder above this one. Workers compute on the CPU with so many threads each, so that two of them do not take each
other's cores. `--arguments` gives workers further ones, `--device rocm:{}` one GPU each.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import threading
import time
from urllib.parse import urlsplit

from routers.router import Router
from worker import Worker

# Chats begin with one of so many system prompts.
BEGINNINGS = 8
WORDS = "river stone light green paper quiet seven table music winter garden letter open small bread window".split()


class Load:
    """Clients that ask one thing after the other, streamed."""

    def __init__(self, url, clients, seconds, tokens):
        self.address = urlsplit(url)
        self.tokens = tokens
        self.lock = threading.Lock()
        self.firsts, self.failures = [], 0
        self.until = time.monotonic() + seconds
        self.threads = [threading.Thread(target=self.client, args=(seed,)) for seed in range(clients)]

    def run(self):
        began = time.monotonic()
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return time.monotonic() - began

    def client(self, seed):
        words = random.Random(seed)
        while time.monotonic() < self.until:
            beginning = random.Random(words.randrange(BEGINNINGS)).choices(WORDS, k=120)
            question = words.choices(WORDS, k=12)
            messages = [
                {"role": "system", "content": " ".join(beginning)},
                {"role": "user", "content": " ".join(question)},
            ]
            try:
                self.ask(messages)
            except (OSError, http.client.HTTPException, AssertionError):
                with self.lock:
                    self.failures += 1

    def ask(self, messages):
        body = {"model": "smollm2", "messages": messages, "max_tokens": self.tokens, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=300)
        began, first, ended = time.monotonic(), None, False
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            assert response.status == 200, response.status
            while line := response.readline():
                ended = ended or line.strip() == b"data: [DONE]"
                if line.startswith(b"data: {") and not first:
                    choices = json.loads(line[6:])["choices"]
                    # The first frame says only whose answer it is.
                    if any(choice["delta"].get("content") for choice in choices):
                        first = time.monotonic()
        finally:
            connection.close()
        assert first and ended
        with self.lock:
            self.firsts.append(first - began)


def cached_share(workers):
    known = sum(worker.metric("llm_prefix_hit_tokens_total") for worker in workers)
    return known / max(1, known + sum(worker.metric("llm_prompt_tokens_total") for worker in workers))


def measure(name, count, routed, options):
    workers, router = [], None
    try:
        for place in range(count):
            arguments = [argument.replace("{}", str(place)) for argument in options.arguments.split()]
            workers.append(Worker("--parallel", str(options.clients), *arguments))
        if routed:
            arguments = ("--disable-tokenizer-autoload", "--policy", "cache_aware", "--load-monitor-interval", "1")
            router = Router("smg.launch_router", workers, *arguments)
        load = Load(router.url if router else workers[0].url, options.clients, options.seconds, options.tokens)
        took = load.run()
        firsts = sorted(load.firsts)
        print(
            f"{name:24} {len(firsts) / took:7.2f} requests/s {len(firsts) * options.tokens / took:8.1f} tokens/s"
            f"  first token {statistics.median(firsts):6.3f} s, 95 % {firsts[int(len(firsts) * 0.95)]:6.3f} s"
            f"  cached {cached_share(workers):4.0%}  failed {load.failures}",
            flush=True,
        )
    finally:
        if router:
            router.stop()
        for worker in workers:
            worker.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--arguments", default="", help="further ones of each worker; {} is its number")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    measure("one worker", 1, False, options)
    measure("one worker behind smg", 1, True, options)
    measure("two workers behind smg", 2, True, options)


if __name__ == "__main__":
    main()
