"""Cohere's own client against the worker."""

import base64
import os
import struct
import tempfile
import unittest
from pathlib import Path

import cohere

import tiny_ranker
from worker import Worker

MINILM = os.environ.get("CANDLE_ROCM_MINILM")
DOCUMENTS = ["cde", "fgh", "xyz"]


class Cohere(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        tiny_ranker.write(Path(cls.folder.name))
        more = ["--embedding-model", MINILM] if MINILM else []
        cls.worker = Worker("--api-key", "one,two", *more, model=cls.folder.name)
        cls.client = cohere.ClientV2(api_key="two", base_url=cls.worker.url)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()
        cls.folder.cleanup()

    def test_documents_are_ranked(self):
        answer = self.client.rerank(model="smollm2", query="ab", documents=DOCUMENTS)
        scores = [result.relevance_score for result in answer.results]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(sorted(result.index for result in answer.results), [0, 1, 2])
        self.assertEqual(answer.meta.billed_units.search_units, 1)
        best = self.client.rerank(model="smollm2", query="ab", documents=DOCUMENTS, top_n=1).results
        self.assertEqual([result.index for result in best], [answer.results[0].index])
        # The older form, with the documents.
        older = cohere.Client(api_key="one", base_url=self.worker.url)
        documents = [{"text": text} for text in DOCUMENTS]
        found = older.rerank(model="smollm2", query="ab", documents=documents, return_documents=True).results
        self.assertEqual([result.relevance_score for result in found], scores)
        self.assertEqual(found[0].document.text, DOCUMENTS[found[0].index])
        with self.assertRaises(cohere.BadRequestError) as refused:
            self.client.rerank(model="smollm2", query="ab", documents=DOCUMENTS, max_tokens_per_doc=3)
        self.assertIn("max_tokens_per_doc", str(refused.exception))
        with self.assertRaises(cohere.NotFoundError):
            self.client.rerank(model="other", query="ab", documents=DOCUMENTS)
        with self.assertRaises(cohere.UnauthorizedError):
            stranger = cohere.ClientV2(api_key="three", base_url=self.worker.url)
            stranger.rerank(model="smollm2", query="ab", documents=DOCUMENTS)

    @unittest.skipUnless(MINILM, "no embedding model")
    def test_vectors(self):
        ask = {"model": "smollm2", "input_type": "search_document"}
        whole = self.client.embed(texts=["a", "b"], embedding_types=["float", "base64"], **ask)
        first = whole.embeddings.float_[0]
        self.assertEqual((len(whole.embeddings.float_), len(first)), (2, 384))
        decoded = struct.unpack("<384f", base64.b64decode(whole.embeddings.base64[0]))
        self.assertEqual([struct.unpack("<f", struct.pack("<f", x))[0] for x in first], list(decoded))
        short = self.client.embed(texts=["a"], output_dimension=32, embedding_types=["float"], **ask)
        short = short.embeddings.float_[0]
        self.assertEqual(len(short), 32)
        self.assertAlmostEqual(sum(x * x for x in short), 1, places=5)
        self.assertAlmostEqual(short[1] / short[0], first[1] / first[0], places=3)
        with self.assertRaisesRegex(cohere.BadRequestError, "int8"):
            self.client.embed(texts=["a"], embedding_types=["int8"], **ask)
        with self.assertRaisesRegex(cohere.BadRequestError, "384"):
            self.client.embed(texts=["a"], output_dimension=385, embedding_types=["float"], **ask)


if __name__ == "__main__":
    unittest.main()
