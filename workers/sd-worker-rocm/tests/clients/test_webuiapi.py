"""webuiapi, the usual client of AUTOMATIC1111's web UI, against the worker: every one of its calls."""

import asyncio
import inspect
import json
import threading
import time
import unittest

import webuiapi
from PIL import Image

from worker import SIDE, STEPS, Worker

KEY = "secret"
SMALL = {"width": SIDE, "height": SIDE, "steps": STEPS, "seed": 5}
# Calls of extensions that this server does not stand for, and what changes this client itself.
OTHERS = {
    "list_prompt_gen_models", "prompt_gen", "check_extensions", "set_auth", "get_endpoint", "post_and_get_api_result",
    "async_post",
}


def picture(side=SIDE):
    image = Image.new("RGB", (side, side), "white")
    image.paste("red", (side // 4, side // 4, side // 2, side // 2))
    return image


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--api-key", KEY)
        cls.api = webuiapi.WebUIApi(
            host=cls.worker.host, port=cls.worker.port, sampler="Euler a", steps=STEPS, username="anybody", password=KEY
        )
        cls.called = set()
        # Notes which calls there were; inner ones count, too.
        for name, method in inspect.getmembers(cls.api, inspect.ismethod):
            if not name.startswith("_"):
                setattr(cls.api, name, cls.noted(name, method))

    @classmethod
    def noted(cls, name, method):
        def call(*arguments, **named):
            cls.called.add(name)
            return method(*arguments, **named)

        return call

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()
        every = {name for name, _ in inspect.getmembers(webuiapi.WebUIApi, inspect.isfunction) if not name.startswith("_")}
        missing = every - OTHERS - cls.called
        if missing:
            raise AssertionError(f"calls that were not tried: {sorted(missing)}")

    def test_text_to_pictures(self):
        one = self.api.txt2img(prompt="a red circle", **SMALL)
        self.assertEqual(one.image.size, (SIDE, SIDE))
        self.assertEqual(one.info["all_seeds"], [5])
        self.assertEqual(one.parameters["prompt"], "a red circle")
        many = self.api.txt2img(prompt="a red circle", batch_size=2, n_iter=2, styles=[""], negative_prompt="blue", **SMALL)
        self.assertEqual(len(many.images), 4)
        self.assertEqual(many.info["all_seeds"], [5, 6, 7, 8])
        self.assertEqual(one.image.tobytes() == many.images[0].tobytes(), False, "the negative prompt counts")
        read = self.api.png_info(many.images[3])
        self.assertIn("Negative prompt: blue", read.info)
        self.assertEqual(read.parameters["Seed"], "8")
        unsent = self.api.txt2img(prompt="x", send_images=False, **SMALL)
        self.assertEqual(unsent.images, [])

    def test_pictures_to_pictures(self):
        start = picture()
        made = self.api.img2img(images=[start], prompt="a blue circle", denoising_strength=0.6, **SMALL)
        self.assertEqual(made.image.size, (SIDE, SIDE))
        mask = Image.new("L", (SIDE, SIDE), 0)
        mask.paste(255, (0, 0, SIDE // 2, SIDE))
        right = (SIDE * 3 // 4, 0, SIDE, SIDE)
        # As the client has it: only the masked part, filled with colours from around it.
        for more in ({}, {"inpaint_full_res": False, "inpainting_fill": 2, "resize_mode": 1}):
            inside = self.api.img2img(images=[start], mask_image=mask, prompt="a blue circle", **more, **SMALL)
            self.assertLess(distance(inside.image.crop(right), start.crop(right)), 40, "what is black in the mask stays")

    def test_pictures_later(self):
        async def both():
            first = self.api.txt2img(prompt="a red circle", use_async=True, **SMALL)
            second = self.api.img2img(images=[picture()], prompt="x", use_async=True, **SMALL)
            return await asyncio.gather(first, second)

        for made in asyncio.run(both()):
            self.assertEqual(made.image.size, (SIDE, SIDE))

    def test_extras(self):
        large = self.api.extra_single_image(picture(16), upscaler_1=webuiapi.Upscaler.Lanczos, upscaling_resize=2)
        self.assertEqual(large.image.size, (32, 32))
        several = self.api.extra_batch_images(
            [picture(16), picture(24)], upscaler_1="Nearest", upscaler_2="Lanczos", extras_upscaler_2_visibility=0.5
        )
        self.assertEqual([image.size for image in several.images], [(32, 32), (48, 48)])
        with self.assertRaisesRegex(RuntimeError, "SwinIR"):
            self.api.extra_single_image(picture(16), upscaler_1=webuiapi.Upscaler.SwinIR_4x)

    def test_lists(self):
        self.assertIn("Euler a", self.api.util_get_sampler_names())
        self.assertIn("karras", self.api.util_get_scheduler_names())
        names = [name["name"] for name in self.api.get_upscalers()]
        self.assertEqual(names[:3], ["None", "Lanczos", "Nearest"])
        self.assertIn("controlnet", self.api.get_scripts()["txt2img"])
        self.assertTrue(self.api.get_cmd_flags()["api"])
        self.assertEqual(self.api.get_embeddings()["loaded"], {})
        self.assertGreater(self.api.get_memory()["ram"]["used"], 0)
        for call in (
            self.api.get_sd_vae, self.api.get_latent_upscale_modes, self.api.get_loras, self.api.get_hypernetworks,
            self.api.get_face_restorers, self.api.get_realesrgan_models, self.api.get_prompt_styles, self.api.get_artists,
            self.api.get_artist_categories,
        ):
            self.assertIsInstance(call(), list)
        self.assertIsNone(self.api.refresh_checkpoints())
        self.assertGreater(len(self.api.get_samplers()), 10)
        self.assertGreater(len(self.api.get_schedulers()), 5)

    def test_models_and_settings(self):
        (model,) = self.api.util_get_model_names()
        self.api.util_set_model(model)
        self.assertEqual(self.api.util_get_current_model(), model)
        self.assertEqual(self.api.get_sd_models()[0]["model_name"], model)
        options = self.api.get_options()
        self.assertEqual(self.api.set_options(options), {}, "what was read can be posted back")
        self.assertEqual(self.api.set_options({"samples_format": "webp"}), {})
        self.assertEqual(self.api.txt2img(prompt="x", **SMALL).image.format, "WEBP")
        self.api.set_options({"samples_format": "png"})
        overridden = self.api.txt2img(prompt="x", override_settings={"samples_format": "jpg"}, **SMALL)
        self.assertEqual(overridden.image.format, "JPEG")
        self.assertIn("tiling", self.api.set_options({"tiling": True})["detail"])

    def test_progress_and_the_end_of_it(self):
        def run():
            try:
                self.api.txt2img(prompt="x", width=256, height=256, steps=150)
            except RuntimeError as error:
                ended.append(error)

        for stop in (self.api.interrupt, self.api.skip):
            ended = []
            thread = threading.Thread(target=run)
            thread.start()
            deadline = time.monotonic() + 60
            while self.api.get_progress()["state"]["sampling_step"] < 1:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            self.assertEqual(stop(), {})
            thread.join()
            self.assertEqual(ended[0].args[0], 409)
            self.assertIn("cancelled", json.loads(ended[0].args[1])["detail"])
        self.api.util_wait_for_ready(check_interval=0.05)

    def test_what_is_switched_off(self):
        plain = self.api.txt2img(prompt="a red circle", **SMALL)
        scripts = {
            "ADetailer": {"args": [False]},
            "Seed": {"args": [5, False, -1, 0, 0, 0]},
            "Refiner": {"args": [False, "", 0.8]},
        }
        same = self.api.txt2img(prompt="a red circle", alwayson_scripts=scripts, **SMALL)
        self.assertEqual(plain.image.tobytes(), same.image.tobytes())
        with self.assertRaisesRegex(RuntimeError, "ADetailer"):
            # Its default for this argument is one dictionary for all calls, which it writes into.
            self.api.txt2img(prompt="x", adetailer=[webuiapi.ADetailer(ad_model="face")], alwayson_scripts={}, **SMALL)
        off = webuiapi.ControlNetUnit(enabled=False)
        same = self.api.txt2img(prompt="a red circle", controlnet_units=[off], alwayson_scripts={}, **SMALL)
        self.assertEqual(plain.image.tobytes(), same.image.tobytes())
        unknown = webuiapi.ControlNetUnit(image=picture(), model="nowhere")
        with self.assertRaisesRegex(RuntimeError, "nowhere"):
            self.api.txt2img(prompt="x", controlnet_units=[unknown], alwayson_scripts={}, **SMALL)

    def test_controlnet(self):
        self.assertEqual(self.api.controlnet_version(), 2)
        self.assertEqual(self.api.controlnet_model_list(), [])
        self.assertIn("none", self.api.controlnet_module_list())
        self.assertEqual(self.api.controlnet_detect([picture(16)]).image.size, (16, 16))

    def test_refusals(self):
        with self.assertRaisesRegex(RuntimeError, "501.*interrogate"):
            self.api.interrogate(picture())
        with self.assertRaisesRegex(RuntimeError, "400.*nowhere"):
            self.api.txt2img(prompt="x", sampler_name="nowhere", **SMALL)
        stranger = webuiapi.WebUIApi(host=self.worker.host, port=self.worker.port, username="anybody", password="wrong")
        self.assertEqual(stranger.get_options()["error"]["code"], "INVALID_API_KEY")
        self.assertEqual(self.api.custom_get("internal/ping"), {})
        ping = self.api.custom_post("sdapi/v1/extra-single-image", payload={"image": webuiapi.b64_img(picture(8))})
        self.assertEqual(ping.image.size, (8, 8))


def distance(one, other):
    """The largest difference of two pictures' channels."""
    pairs = zip(one.convert("RGB").tobytes(), other.convert("RGB").tobytes())
    return max(abs(a - b) for a, b in pairs)


if __name__ == "__main__":
    unittest.main()
