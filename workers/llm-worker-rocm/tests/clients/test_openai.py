"""OpenAI's own client against the worker."""

import json
import math
import os
import tempfile
import unittest
from pathlib import Path

import openai

import tiny_vision
import tiny_whisper
from worker import Worker, exact_cases

MINILM = os.environ.get("CANDLE_ROCM_MINILM")
# Tokens that are shared among requests at a time.
BLOCK = 16
GREEDY = {"model": "smollm2", "temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def client_of(worker, key="none"):
    return openai.OpenAI(base_url=worker.url + "/v1", api_key=key, max_retries=0, timeout=120)


class Pictures(unittest.TestCase):
    def test_a_picture_is_seen(self):
        case = tiny_vision.CASE
        prompt = case["prompt"]
        with tempfile.TemporaryDirectory() as folder:
            tiny_vision.write(Path(folder))
            worker = Worker(model=folder)
            try:
                def ask_for(part, prompt):
                    last = max(i for i, token in enumerate(prompt) if token > 29)
                    content = [
                        {"type": "text", "text": tiny_vision.words(prompt[:3])},
                        part,
                        {"type": "text", "text": tiny_vision.words(prompt[last + 1 :])},
                    ]
                    more = {"return_tokens": True, "ignore_eos": True}
                    messages = [{"role": "user", "content": content}]
                    return client_of(worker).chat.completions.create(
                        messages=messages, max_tokens=8, extra_body=more, **GREEDY
                    )

                def ask(address):
                    return ask_for({"type": "image_url", "image_url": {"url": address}}, prompt)

                answer = ask(tiny_vision.picture())
                self.assertEqual(answer.choices[0].tokens, [token for token, _ in case["answer"]])
                self.assertEqual(answer.usage.prompt_tokens, len(prompt))
                # Frames of a video.
                frames, fps = tiny_vision.video()
                video = {"type": "video_url", "video_url": {"url": frames}, "fps": fps}
                answer = ask_for(video, tiny_vision.VIDEO["prompt"])
                self.assertEqual(answer.choices[0].tokens, [token for token, _ in tiny_vision.VIDEO["answer"]])
                self.assertEqual(answer.usage.prompt_tokens, len(tiny_vision.VIDEO["prompt"]))
                container = "data:video/mp4;base64,AAAAGGZ0eXBtcDQy"
                with self.assertRaisesRegex(openai.BadRequestError, "MP4.*ffmpeg"):
                    ask_for({"type": "video_url", "video_url": {"url": container}}, prompt)
                # Where it may not come from is told.
                for address, reason in [
                    ("/etc/passwd", "--media-path"),
                    ("https://example.org/a.png", "--allowed-media-domains"),
                    ("data:image/png;base64,aGVsbG8=", "neither PNG"),
                ]:
                    with self.assertRaisesRegex(openai.BadRequestError, reason):
                        ask(address)
            finally:
                worker.stop()


class Speech(unittest.TestCase):
    def test_speech_is_written_down(self):
        with tempfile.TemporaryDirectory() as folder:
            tiny_whisper.write(Path(folder))
            worker = Worker(model=folder)
            try:
                audio = client_of(worker).audio
                file = ("sound.wav", tiny_whisper.sound())
                plain = audio.transcriptions.create(model="smollm2", file=file)
                self.assertTrue(plain.text)
                verbose = audio.transcriptions.create(
                    model="smollm2",
                    file=file,
                    response_format="verbose_json",
                    timestamp_granularities=["segment", "word"],
                )
                self.assertEqual(verbose.text, plain.text)
                self.assertEqual(verbose.duration, 2)
                self.assertIn(verbose.language, ("english", "german"))
                for segment in verbose.segments:
                    self.assertLess(segment.start, segment.end)
                self.assertTrue(verbose.words)
                subtitles = audio.transcriptions.create(model="smollm2", file=file, response_format="srt")
                self.assertIn("00:00:0", subtitles)
                stream = audio.transcriptions.create(model="smollm2", file=file, stream=True)
                events = list(stream)
                self.assertEqual(events[-1].type, "transcript.text.done")
                self.assertEqual(events[-1].text, plain.text)
                deltas = [event.delta for event in events[:-1]]
                self.assertEqual("".join(deltas).rstrip(), plain.text)
                self.assertTrue(audio.translations.create(model="smollm2", file=file).text)
                with self.assertRaisesRegex(openai.BadRequestError, "no format"):
                    audio.transcriptions.create(model="smollm2", file=("sound.wav", b"hello"))
                with self.assertRaisesRegex(openai.BadRequestError, "klingon"):
                    audio.transcriptions.create(model="smollm2", file=file, language="klingon")
            finally:
                worker.stop()


class Sounds(unittest.TestCase):
    def test_a_sound_is_heard(self):
        case = tiny_vision.HEARING
        prompt = case["prompt"]
        last = max(i for i, token in enumerate(prompt) if token > 29)
        with tempfile.TemporaryDirectory() as folder:
            tiny_vision.write(Path(folder), case, tiny_vision.HEARING_TEMPLATE)
            worker = Worker(model=folder)
            try:
                def ask(part):
                    content = [
                        {"type": "text", "text": tiny_vision.words(prompt[:3])},
                        part,
                        {"type": "text", "text": tiny_vision.words(prompt[last + 1 :])},
                    ]
                    more = {"return_tokens": True, "ignore_eos": True}
                    messages = [{"role": "user", "content": content}]
                    return client_of(worker).chat.completions.create(
                        messages=messages, max_tokens=8, extra_body=more, **GREEDY
                    )

                data = tiny_vision.sound()
                heard = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
                answer = ask(heard)
                self.assertEqual(answer.choices[0].tokens, [token for token, _ in case["answer"]])
                self.assertEqual(answer.usage.prompt_tokens, len(prompt))
                # vLLM's form, and the same sound is known.
                again = ask({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}})
                self.assertEqual(again.choices[0].tokens, answer.choices[0].tokens)
                self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)
                for part, reason in [
                    ({"type": "audio_url", "audio_url": {"url": "/etc/passwd"}}, "--media-path"),
                    ({"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}, "no format"),
                    ({"type": "input_audio"}, "needs its data"),
                    ({"type": "image_url", "image_url": {"url": tiny_vision.picture()}}, "takes no pictures"),
                ]:
                    with self.assertRaisesRegex(openai.BadRequestError, reason):
                        ask(part)
            finally:
                worker.stop()


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker()
        cls.client = client_of(cls.worker)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def complete(self, prompt, **fields):
        return self.client.completions.create(prompt=prompt, **{**GREEDY, **fields})

    def chat(self, content, **fields):
        messages = [{"role": "user", "content": content}]
        return self.client.chat.completions.create(messages=messages, **{**GREEDY, **fields})

    def test_a_model_that_does_not_see_says_so(self):
        content = [{"type": "image_url", "image_url": {"url": tiny_vision.picture()}}]
        with self.assertRaisesRegex(openai.BadRequestError, "takes no pictures"):
            self.chat(content)

    def test_a_model_that_does_not_hear_says_so(self):
        content = [{"type": "input_audio", "input_audio": {"data": tiny_vision.sound(), "format": "wav"}}]
        with self.assertRaisesRegex(openai.BadRequestError, "no sounds"):
            self.chat(content)

    def test_the_references_answers(self):
        cases = exact_cases()
        self.assertTrue(cases)
        for case in cases:
            expected = case["llama_cpp"]["tokens"]
            answer = self.complete(case["prompt"], max_tokens=48, extra_body={"return_tokens": True})
            self.assertEqual(answer.choices[0].tokens[: len(expected)], expected, case["prompt"])
            self.assertEqual(answer.usage.prompt_tokens, len(case["prompt_tokens"]))
            # The same as tokens in, as a stream, and with the prompt's beginning known.
            again = self.complete(case["prompt_tokens"], max_tokens=48)
            self.assertEqual(again.choices[0].text, answer.choices[0].text)
            if len(case["prompt_tokens"]) > BLOCK:
                self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)
            stream = self.complete(case["prompt"], max_tokens=48, stream=True)
            text = "".join(chunk.choices[0].text for chunk in stream)
            self.assertEqual(text, answer.choices[0].text)

    def test_a_chat_as_a_whole_and_as_a_stream(self):
        whole = self.chat("Are dogs real?", max_tokens=24)
        choice = whole.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertGreater(whole.timings["predicted_per_second"], 0)
        stream = self.chat("Are dogs real?", max_tokens=24, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, choice.message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, choice.finish_reason)

    def test_seeds(self):
        fields = {"temperature": 1.5, "max_tokens": 12, "n": 2}
        answers = [self.chat("Tell a story.", seed=seed, **fields) for seed in (5, 5, 6)]
        texts = [[choice.message.content for choice in answer.choices] for answer in answers]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertNotEqual(*texts[0])

    def test_prompts_are_told_and_the_best_answer_is_given(self):
        told = self.complete("The cat sat", echo=True, logprobs=2, max_tokens=2).choices[0]
        logprobs = told.logprobs
        self.assertTrue(told.text.startswith("The cat sat"))
        self.assertEqual("".join(logprobs.tokens), told.text)
        for place, token in zip(logprobs.text_offset, logprobs.tokens):
            self.assertEqual(told.text[place : place + len(token)], token)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(logprob <= 0 for logprob in logprobs.token_logprobs[1:]))
        # An answer's tokens are as likely as the same tokens in a prompt.
        whole = self.complete(told.text, echo=True, logprobs=0, max_tokens=0).choices[0]
        self.assertEqual(whole.text, told.text)
        for found, expected in zip(whole.logprobs.token_logprobs[1:], logprobs.token_logprobs[1:]):
            self.assertAlmostEqual(found, expected, places=3)
        warm = {"max_tokens": 6, "temperature": 1.5, "seed": 3, "logprobs": 0, "extra_body": {"ignore_eos": True}}
        mean = lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
        three = self.complete("Once", n=3, **warm).choices
        best = self.complete("Once", best_of=3, **warm).choices
        self.assertEqual([choice.text for choice in best], [max(three, key=mean).text])

    def test_stop_and_probabilities(self):
        answer = self.chat("Count from one to five.", max_tokens=32, logprobs=True, top_logprobs=2)
        entries = answer.choices[0].logprobs.content
        text = b"".join(bytes(entry.bytes) for entry in entries)
        self.assertEqual(text.decode(errors="replace"), answer.choices[0].message.content)
        for entry in entries:
            # Greedy takes the most likely.
            self.assertEqual(entry.token, entry.top_logprobs[0].token)
            self.assertLessEqual(entry.logprob, 0)
        stop = answer.choices[0].message.content[5:8]
        short = self.chat("Count from one to five.", max_tokens=32, stop=[stop])
        self.assertEqual(short.choices[0].message.content, answer.choices[0].message.content.split(stop)[0])
        self.assertEqual(short.choices[0].finish_reason, "stop")

    def test_a_json_schema_is_followed(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        answer = self.chat("Who are you? Answer in JSON.", response_format=form, temperature=1, seed=1)
        person = json.loads(answer.choices[0].message.content)
        self.assertIn(person["name"], ("Ann", "Bob"))
        self.assertTrue(1 <= person["age"] <= 99)

    def test_calls(self):
        tools = [{"type": "function", "function": {"name": "greet", "description": "Greets", "parameters": PERSON}}]
        fields = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        whole = self.chat("Greet Ann, who is 30.", **fields).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        [call] = whole.message.tool_calls
        self.assertEqual(call.function.name, "greet")
        self.assertIn(json.loads(call.function.arguments)["name"], ("Ann", "Bob"))
        arguments = ""
        for chunk in self.chat("Greet Ann, who is 30.", stream=True, **fields):
            for piece in chunk.choices[0].delta.tool_calls or []:
                arguments += piece.function.arguments or ""
        self.assertEqual(json.loads(arguments), json.loads(call.function.arguments))
        # The tool's answer goes back into the chat.
        messages = [
            {"role": "user", "content": "Greet Ann."},
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "Hello, Ann!"},
        ]
        answer = self.client.chat.completions.create(messages=messages, max_tokens=8, **GREEDY)
        self.assertEqual(answer.choices[0].message.role, "assistant")

    def test_mistakes(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.complete("word " * 9000)
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        self.assertRegex(str(raised.exception), r"9\d{3} tokens.*8192")
        with self.assertRaises(openai.NotFoundError):
            self.chat("x", model="gpt-9")
        with self.assertRaises(openai.BadRequestError):
            self.chat("x", extra_body={"min_p": 2})
        self.assertEqual(self.client.models.list().data[0].id, "smollm2")


class Keys(unittest.TestCase):
    def test_a_key_is_asked_for(self):
        worker = Worker("--api-key", "secret", "--context", "256")
        try:
            client_of(worker, "secret").models.list()
            with self.assertRaises(openai.AuthenticationError):
                client_of(worker, "wrong").models.list()
        finally:
            worker.stop()


@unittest.skipUnless(MINILM, "CANDLE_ROCM_MINILM is not set")
class Embeddings(unittest.TestCase):
    def test_near_texts_are_near(self):
        worker = Worker(model=MINILM)
        try:
            client = client_of(worker)
            texts = ["A cat sits on the mat.", "A kitten is on the rug.", "The stock market fell."]
            # The client asks for base64 and gives numbers; once more as plain numbers.
            answer = client.embeddings.create(model="smollm2", input=texts)
            plain = client.embeddings.create(model="smollm2", input=texts, encoding_format="float")
            a, b, c = (item.embedding for item in answer.data)
            self.assertEqual(len(a), 384)
            for x, y in zip(a, plain.data[0].embedding):
                self.assertAlmostEqual(x, y, places=6)
            dot = lambda x, y: sum(p * q for p, q in zip(x, y))
            self.assertAlmostEqual(dot(a, a), 1, places=4)
            self.assertGreater(dot(a, b), dot(a, c) + 0.2)
            # The first numbers, of length 1 again.
            short = client.embeddings.create(model="smollm2", input=texts[:1], dimensions=64).data[0].embedding
            norm = math.sqrt(dot(a[:64], a[:64]))
            self.assertEqual(len(short), 64)
            for x, y in zip(short, a):
                self.assertAlmostEqual(x, y / norm, places=5)
            for wrong in (0, 385):
                with self.assertRaisesRegex(openai.BadRequestError, "384"):
                    client.embeddings.create(model="smollm2", input="x", dimensions=wrong)
            with self.assertRaises(openai.BadRequestError):
                client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "x"}])
        finally:
            worker.stop()


if __name__ == "__main__":
    unittest.main()
