"""OpenAI's own client and its Responses API against the worker."""

import unittest

import openai

from worker import Worker


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker()
        cls.client = openai.OpenAI(base_url=cls.worker.url + "/v1", api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def ask(self, **more):
        return {"model": "smollm2", "max_output_tokens": 16, "temperature": 0, "input": "Count to five.", **more}

    def test_a_stream_says_what_a_whole_response_does(self):
        whole = self.client.responses.create(**self.ask())
        self.assertEqual((whole.status, whole.usage.output_tokens), ("incomplete", 16))
        with self.client.responses.stream(**self.ask()) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        # It is cut by the limit.
        last = events[-1]
        self.assertEqual((last.type, last.response.output_text), ("response.incomplete", text))

    def test_a_chat_that_the_server_keeps(self):
        first = self.client.responses.create(**self.ask())
        kept = self.client.responses.retrieve(first.id)
        self.assertEqual(kept.output_text, first.output_text)
        more = self.client.responses.create(**self.ask(input="And back.", previous_response_id=first.id))
        self.assertEqual(more.previous_response_id, first.id)
        self.assertGreater(more.usage.input_tokens, first.usage.input_tokens + first.usage.output_tokens)
        sent = [
            {"role": "user", "content": "Count to five."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And back."},
        ]
        self.assertEqual(self.client.responses.create(**self.ask(input=sent)).output_text, more.output_text)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_forms_and_functions(self):
        schema = {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"], "additionalProperties": False}
        form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        answer = self.client.responses.create(**self.ask(max_output_tokens=40, text=form))
        self.assertEqual(answer.output_text.replace(" ", "").replace("\n", ""), '{"n":5}')
        tool = {"type": "function", "name": "add", "strict": True, "parameters": schema}
        choice = {"type": "function", "name": "add"}
        answer = self.client.responses.create(**self.ask(max_output_tokens=80, tools=[tool], tool_choice=choice))
        call = answer.output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "add"))
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "6"}
        answer = self.client.responses.create(**self.ask(input=[output], previous_response_id=answer.id, tools=[tool]))
        self.assertGreater(answer.usage.output_tokens, 0)


if __name__ == "__main__":
    unittest.main()
