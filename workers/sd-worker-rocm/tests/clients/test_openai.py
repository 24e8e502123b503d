"""OpenAI's own client against the worker: every call about pictures."""

import base64
import io
import unittest
import urllib.request

import openai
from PIL import Image

from worker import SIDE, STEPS, Worker

KEY = "secret"
SIZE = f"{SIDE}x{SIDE}"
OWN = {"seed": 5, "steps": STEPS}
MODEL = "gpt-image-1"


def file_of(image, name="a.png"):
    data = io.BytesIO()
    image.save(data, "PNG")
    return name, data.getvalue(), "image/png"


def picture(mode="RGB", colour="white"):
    image = Image.new(mode, (SIDE, SIDE), colour)
    image.paste("red", (SIDE // 4, SIDE // 4, SIDE // 2, SIDE // 2))
    return image


def opened(data):
    return Image.open(io.BytesIO(base64.b64decode(data.b64_json)))


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--api-key", KEY)
        cls.client = openai.OpenAI(base_url=cls.worker.url + "/v1", api_key=KEY, max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.worker.stop()

    def test_generations(self):
        made = self.client.images.generate(model=MODEL, prompt="a red circle", n=2, size=SIZE, extra_body=OWN)
        self.assertEqual([opened(data).size for data in made.data], [(SIDE, SIDE)] * 2)
        self.assertEqual((made.output_format, made.background, made.size), ("png", "opaque", SIZE))
        again = self.client.images.generate(model=MODEL, prompt="a red circle", size=SIZE, extra_body=OWN)
        self.assertEqual(again.data[0].b64_json, made.data[0].b64_json)

    def test_options(self):
        made = self.client.images.generate(
            model=MODEL, prompt="a red circle", size=SIZE, background="opaque", moderation="low", quality="high",
            output_format="jpeg", output_compression=40, user="me", extra_body=OWN,
        )
        self.assertEqual(opened(made.data[0]).format, "JPEG")
        for refused in ({"background": "transparent"}, {"style": "vivid"}, {"output_compression": 3}):
            with self.assertRaises(openai.BadRequestError) as error:
                self.client.images.generate(model=MODEL, prompt="x", **refused)
            self.assertEqual(error.exception.param, *refused)

    def test_addresses(self):
        made = self.client.images.generate(prompt="x", size=SIZE, response_format="url", output_format="webp", extra_body=OWN)
        with urllib.request.urlopen(made.data[0].url, timeout=60) as answer:
            self.assertEqual(Image.open(io.BytesIO(answer.read())).format, "WEBP")

    def test_streams(self):
        stream = self.client.images.generate(prompt="x", size=SIZE, stream=True, partial_images=1, extra_body=OWN)
        kinds = [event.type for event in stream]
        self.assertEqual(kinds, ["image_generation.partial_image", "image_generation.completed"])
        stream = self.client.images.edit(
            image=file_of(picture()), prompt="x", size=SIZE, stream=True, partial_images=1, extra_body=OWN | {"strength": 1.0}
        )
        self.assertEqual([event.type for event in stream], ["image_edit.partial_image", "image_edit.completed"])

    def test_edits(self):
        start = picture()
        made = self.client.images.edit(
            image=file_of(start), prompt="a blue circle", size=SIZE, input_fidelity="high", extra_body=OWN
        )
        self.assertEqual(opened(made.data[0]).size, (SIDE, SIDE))
        # What is transparent is painted.
        mask = picture("RGBA", (0, 0, 0, 255))
        mask.paste((0, 0, 0, 0), (0, 0, SIDE // 2, SIDE))
        made = self.client.images.edit(
            image=[file_of(start)], mask=file_of(mask), prompt="a blue circle", size=SIZE, extra_body=OWN
        )
        self.assertEqual(opened(made.data[0]).size, (SIDE, SIDE))
        with self.assertRaisesRegex(openai.BadRequestError, "one picture at a time"):
            self.client.images.edit(image=[file_of(start), file_of(start, "b.png")], prompt="both")

    def test_variations(self):
        made = self.client.images.create_variation(image=file_of(picture()), n=2, size=SIZE, extra_body=OWN)
        self.assertEqual(len(made.data), 2)
        self.assertEqual(opened(made.data[1]).size, (SIDE, SIDE))

    def test_models_and_keys(self):
        (model,) = self.client.models.list().data
        self.assertEqual(model.owned_by, "local")
        stranger = openai.OpenAI(base_url=self.worker.url + "/v1", api_key="wrong", max_retries=0)
        with stranger, self.assertRaises(openai.AuthenticationError):
            stranger.images.generate(prompt="x")


if __name__ == "__main__":
    unittest.main()
