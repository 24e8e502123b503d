"""Ollama's own client against the worker."""

import os
import unittest

import ollama

from worker import Worker

MINILM = os.environ.get("CANDLE_ROCM_MINILM")
GREEDY = {"temperature": 0, "num_predict": 12}


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        more = ["--embedding-model", MINILM] if MINILM else []
        cls.worker = Worker(*more)
        cls.client = ollama.Client(host=cls.worker.url)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def test_lines_say_what_a_whole_answer_does(self):
        messages = [{"role": "user", "content": "Count to five."}]
        whole = self.client.chat(model="smollm2", messages=messages, options=GREEDY)
        self.assertEqual((whole.done_reason, whole.eval_count), ("length", 12))
        lines = self.client.chat(model="smollm2:latest", messages=messages, options=GREEDY, stream=True)
        self.assertEqual("".join(line.message.content for line in lines), whole.message.content)
        answer = self.client.generate(model="smollm2", prompt="Count to five.", options=GREEDY)
        self.assertEqual(answer.response, whole.message.content)
        schema = {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"], "additionalProperties": False}
        form = self.client.chat(model="smollm2", messages=messages, format=schema, options={**GREEDY, "num_predict": 40})
        self.assertEqual(form.message.content.replace(" ", "").replace("\n", ""), '{"n":5}')

    def test_what_is_there(self):
        self.assertEqual([model.model for model in self.client.list().models], ["smollm2"])
        self.assertIn("completion", self.client.show("smollm2").capabilities)
        with self.assertRaises(ollama.ResponseError) as refused:
            self.client.chat(model="other", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(refused.exception.status_code, 404)

    @unittest.skipUnless(MINILM, "no embedding model")
    def test_vectors(self):
        vectors = self.client.embed(model="smollm2", input=["a", "b"]).embeddings
        self.assertEqual((len(vectors), len(vectors[0])), (2, 384))
        self.assertEqual(list(self.client.embeddings(model="smollm2", prompt="a").embedding), list(vectors[0]))


if __name__ == "__main__":
    unittest.main()
