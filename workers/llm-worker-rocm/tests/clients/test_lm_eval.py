"""lm-evaluation-harness against the worker: its figures are what the worker's probabilities give."""

import json
import math
import tempfile
import unittest
from pathlib import Path

import lm_eval_parts

lm_eval_parts.install()

import lm_eval
from lm_eval.tasks import TaskManager

from worker import Worker

QUESTIONS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin", " a kind of cheese"], "answer": 0},
    {"question": "Two and two make", "choices": [" seven apples", " four"], "answer": 1},
    {"question": "At night it is", "choices": [" dark", " green"], "answer": 1},
]
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_choice: choices
target_delimiter: ""
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
""",
    "generate": """
output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker()
        cls.folder = tempfile.TemporaryDirectory()
        folder = Path(cls.folder.name)
        data = folder / "questions.jsonl"
        data.write_text("\n".join(map(json.dumps, QUESTIONS)))
        for name, text in TASKS.items():
            head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
            text_of = '""' if name == "rolling" else '"{{question}}"'
            (folder / f"{name}.yaml").write_text(f"{head}test_split: test\ndoc_to_text: {text_of}{text}")
        cls.tasks = TaskManager(include_path=cls.folder.name, include_defaults=False)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()
        cls.folder.cleanup()

    def run_tasks(self, *tasks, model="local-completions", route="completions", chat=False, **options):
        options = {"model": "smollm2", "base_url": f"{self.worker.url}/v1/{route}", "max_retries": 1, **options}
        arguments = ",".join(f"{name}={value}" for name, value in options.items())
        return lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=list(tasks),
            task_manager=self.tasks,
            bootstrap_iters=0,
            apply_chat_template=chat,
            log_samples=True,
        )

    def tokens(self, text):
        status, answer = self.worker.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual(status, 200)
        return json.loads(answer)["tokens"]

    def logprobs(self, tokens):
        """Of each token but the first."""
        ask = {"prompt": tokens, "max_tokens": 0, "prompt_logprobs": 0}
        status, answer = self.worker.post("/v1/completions", ask)
        self.assertEqual(status, 200, answer)
        told = json.loads(answer)["choices"][0]["prompt_logprobs"]
        return [entry[str(token)]["logprob"] for token, entry in zip(tokens[1:], told[1:])]

    def test_what_is_likely(self):
        likely = []
        for question in QUESTIONS:
            count = len(self.tokens(question["question"]))
            sums = [
                math.fsum(self.logprobs(self.tokens(question["question"] + choice))[count - 1 :])
                for choice in question["choices"]
            ]
            likely.append(sums)
        right = [sums.index(max(sums)) == question["answer"] for sums, question in zip(likely, QUESTIONS)]
        # The model knows the first two, and the third's answer is wrong.
        self.assertEqual(right, [True, True, False])
        bits = 0
        marks = json.loads(self.worker.get("/tokenizer_info")[1])
        first = self.tokens(marks["bos_token"] or marks["eos_token"])
        self.assertEqual(len(first), 1)
        for question in QUESTIONS:
            bits += math.fsum(self.logprobs(first + self.tokens(question["question"])))
        size = sum(len(question["question"].encode()) for question in QUESTIONS)
        # As texts and as tokens, one by one, several at once, and side by side.
        for options in [
            {"num_concurrent": 1, "tokenized_requests": False, "batch_size": 16},
            {"num_concurrent": 4, "tokenized_requests": True},
        ]:
            found = self.run_tasks("choice", "rolling", **options)
            self.assertEqual(found["results"]["choice"]["acc,none"], 2 / 3)
            for sample in found["samples"]["choice"]:
                for (logprob, _), own in zip(sample["filtered_resps"], likely[sample["doc_id"]], strict=True):
                    self.assertAlmostEqual(float(logprob), own, places=3)
            perplexity = found["results"]["rolling"]["byte_perplexity,none"]
            self.assertAlmostEqual(perplexity, math.exp(-bits / size), places=4)

    def test_what_is_generated(self):
        greedy = []
        for question in QUESTIONS:
            ask = {"prompt": question["question"], "max_tokens": 6, "temperature": 0, "stop": ["\n", "."]}
            greedy.append(json.loads(self.worker.post("/v1/completions", ask)[1])["choices"][0]["text"])
        found = self.run_tasks("generate", num_concurrent=1, batch_size=2)
        for sample in found["samples"]["generate"]:
            self.assertEqual(sample["resps"][0][0], greedy[sample["doc_id"]])
        right = [text == question["choices"][question["answer"]] for text, question in zip(greedy, QUESTIONS)]
        self.assertAlmostEqual(found["results"]["generate"]["exact_match,none"], sum(right) / 3)
        chat = {"model": "local-chat-completions", "route": "chat/completions", "chat": True}
        found = self.run_tasks("generate", num_concurrent=3, **chat)
        for sample in found["samples"]["generate"]:
            messages = [{"role": "user", "content": QUESTIONS[sample["doc_id"]]["question"]}]
            ask = {"messages": messages, "max_tokens": 6, "temperature": 0, "stop": ["\n", "."]}
            answer = json.loads(self.worker.post("/v1/chat/completions", ask)[1])
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["message"]["content"])


if __name__ == "__main__":
    unittest.main()
