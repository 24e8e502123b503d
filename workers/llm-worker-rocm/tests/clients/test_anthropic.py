"""Anthropic's own client against the worker."""

import unittest

import anthropic

from worker import Worker


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--api-key", "secret")
        cls.client = anthropic.Anthropic(base_url=cls.worker.url, api_key="secret", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def ask(self, **more):
        fields = {"model": "smollm2", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "Count to five."}]}
        return {**fields, **more}

    def test_a_stream_says_what_a_whole_answer_does(self):
        whole = self.client.messages.create(**self.ask())
        self.assertEqual((whole.role, whole.stop_reason, whole.usage.output_tokens), ("assistant", "max_tokens", 12))
        with self.client.messages.stream(**self.ask()) as stream:
            text = "".join(stream.text_stream)
            last = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(last.content[0].text, text)
        # The prompt is known now.
        cached = last.usage.cache_read_input_tokens
        self.assertGreater(cached, 0)
        tokens = last.usage.input_tokens + cached
        self.assertEqual(tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens)
        counted = self.client.messages.count_tokens(model="smollm2", messages=self.ask()["messages"])
        self.assertEqual(counted.input_tokens, tokens)

    def test_an_answer_that_is_begun_and_a_form(self):
        begun = [*self.ask()["messages"], {"role": "assistant", "content": "1, 2,"}]
        answer = self.client.messages.create(**self.ask(messages=begun))
        self.assertNotEqual(answer.content[0].text, "")
        schema = {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"], "additionalProperties": False}
        form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        answer = self.client.messages.create(**self.ask(max_tokens=40), extra_body=form)
        self.assertEqual(answer.content[0].text.replace(" ", "").replace("\n", ""), '{"n":5}')

    def test_a_tool_that_has_to_be_called(self):
        tool = {"name": "add", "input_schema": {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}}
        choice = {"type": "tool", "name": "add"}
        answer = self.client.messages.create(**self.ask(max_tokens=80), tools=[tool], tool_choice=choice)
        self.assertEqual(answer.stop_reason, "tool_use")
        call = answer.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "add", {"n": 7}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "8"}
        messages = [
            *self.ask()["messages"],
            {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
            {"role": "user", "content": [result]},
        ]
        answer = self.client.messages.create(**self.ask(messages=messages), tools=[tool])
        self.assertGreater(answer.usage.output_tokens, 0)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**self.ask(model="other"))
        with self.assertRaisesRegex(anthropic.BadRequestError, "content must not be empty"):
            self.client.messages.create(**self.ask(messages=[{"role": "user", "content": []}]))
        stranger = self.client.with_options(api_key="other")
        with self.assertRaises(anthropic.AuthenticationError):
            stranger.messages.create(**self.ask())


if __name__ == "__main__":
    unittest.main()
