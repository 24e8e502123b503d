"""Figures, read by Prometheus' own parsers of both formats."""

import json
import unittest
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from worker import Worker

OPENMETRICS = "application/openmetrics-text"
# What the endpoint picker of Kubernetes' Gateway API, llm-d and vLLM's dashboard look for.
VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
}


class Metrics(unittest.TestCase):
    def families(self, worker, accept):
        request = urllib.request.Request(worker.url + "/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as response:
            kind, text = response.headers["Content-Type"], response.read().decode()
        self.assertEqual(kind.startswith(OPENMETRICS), accept.startswith(OPENMETRICS), kind)
        read = read_openmetrics if kind.startswith(OPENMETRICS) else read_text
        families = {}
        for family in read(text):
            self.assertNotIn(family.name, families)
            families[family.name] = family
        return families

    def test_both_formats(self):
        worker = Worker()
        try:
            body = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}
            status, text = worker.post("/v1/completions", body)
            self.assertEqual(status, 200, text)
            prompt_tokens = json.loads(text)["usage"]["prompt_tokens"]
            for accept in ("*/*", f"{OPENMETRICS}; version=1.0.0"):
                families = self.families(worker, accept)
                for name, kind in VLLM.items():
                    family = families["vllm:" + name]
                    self.assertEqual(family.type, kind, name)
                    for sample in family.samples:
                        self.assertEqual(sample.labels["model_name"], "smollm2")
                values = {
                    (sample.name, sample.labels.get("finished_reason")): sample.value
                    for family in families.values()
                    for sample in family.samples
                }
                self.assertEqual(values["vllm:request_success_total", "length"], 1)
                self.assertEqual(values["vllm:request_prompt_tokens_sum", None], prompt_tokens)
                self.assertEqual(values["vllm:request_generation_tokens_sum", None], 5)
                self.assertEqual(values["vllm:time_to_first_token_seconds_count", None], 1)
                self.assertEqual(families["llm_generated_tokens"].type, "counter")
                cache = families["vllm:cache_config_info"].samples[0].labels
                self.assertEqual(cache["block_size"], "16")
        finally:
            worker.stop()

    def test_one_set_of_names(self):
        for names, told, other in (("ours", "llm_", "vllm:"), ("vllm", "vllm:", "llm_")):
            worker = Worker("--metrics-names", names)
            try:
                families = self.families(worker, "text/plain")
                self.assertTrue(any(name.startswith(told) for name in families))
                self.assertFalse(any(name.startswith(other) for name in families))
            finally:
                worker.stop()


if __name__ == "__main__":
    unittest.main()
