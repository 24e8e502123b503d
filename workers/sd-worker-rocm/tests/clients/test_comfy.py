"""comfy-api-simplified, a client of ComfyUI, against the worker, and ComfyUI's own example of a client."""

import copy
import io
import json
import pathlib
import tempfile
import unittest
import urllib.request

from PIL import Image
from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper
from comfy_api_simplified.exceptions import ComfyApiError

from worker import SIDE, STEPS, Worker

KEY = "secret"


def node(title, kind, **inputs):
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title}}


def graph(model):
    return {
        "3": node(
            "KSampler", "KSampler", seed=5, steps=STEPS, cfg=4.0, sampler_name="euler_ancestral", scheduler="normal", denoise=1.0,
            model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0],
        ),
        "4": node("Load Checkpoint", "CheckpointLoaderSimple", ckpt_name=model),
        "5": node("Empty Latent Image", "EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1),
        "6": node("Positive", "CLIPTextEncode", text="a red circle", clip=["4", 1]),
        "7": node("Negative", "CLIPTextEncode", text="", clip=["4", 1]),
        "8": node("VAE Decode", "VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("Save Image", "SaveImage", filename_prefix="test", images=["8", 0]),
    }


class Graphs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--api-key", KEY)
        cls.api = ComfyApiWrapper(cls.worker.url + "/", user="anybody", password=KEY)
        loader = cls.api.get_object_info("CheckpointLoaderSimple")["CheckpointLoaderSimple"]
        cls.graph = graph(loader["input"]["required"]["ckpt_name"][0][0])

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def made(self, workflow):
        (data,) = self.api.queue_and_wait_images(workflow, "Save Image").values()
        return Image.open(io.BytesIO(data))

    def test_text_to_pictures(self):
        workflow = ComfyWorkflowWrapper(copy.deepcopy(self.graph))
        first = self.made(workflow)
        self.assertEqual(first.size, (SIDE, SIDE))
        self.assertEqual(first.tobytes(), self.made(workflow).tobytes())
        workflow.set_node_param("KSampler", "seed", 6)
        self.assertNotEqual(first.tobytes(), self.made(workflow).tobytes())

    def test_pictures_to_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "start.png"
            Image.new("RGB", (SIDE, SIDE), "red").save(path)
            sent = self.api.upload_image(path)
        workflow = copy.deepcopy(self.graph)
        workflow["10"] = node("Load Image", "LoadImage", image=f"{sent['subfolder']}/{sent['name']}")
        workflow["11"] = node("VAE Encode", "VAEEncode", pixels=["10", 0], vae=["4", 2])
        workflow["3"]["inputs"].update(latent_image=["11", 0], denoise=0.5)
        red, green, _ = self.made(workflow).resize((1, 1)).getpixel((0, 0))
        self.assertGreater(red, green + 50, "half of it is kept")

    def test_queue_and_refusals(self):
        self.assertEqual(self.api.get_queue(), {"queue_running": [], "queue_pending": []})
        self.assertGreater(self.api.get_system_stats()["system"]["ram_total"], 0)
        self.assertEqual(self.api.get_embeddings(), [])
        self.assertIn("KSampler", self.api.get_object_info())
        self.api.interrupt()
        workflow = copy.deepcopy(self.graph)
        workflow["12"] = node("Mend", "FaceMender")
        with self.assertRaises(ComfyApiError):
            self.api.queue_prompt(workflow)

    def test_comfyuis_own_example(self):
        body = json.dumps({"prompt": self.graph, "client_id": "me"}).encode()
        # urllib calls it a form.
        request = urllib.request.Request(f"{self.worker.url}/prompt", data=body, headers={"X-Api-Key": KEY})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(json.load(answer)["node_errors"], {})


if __name__ == "__main__":
    unittest.main()
