"""SwarmUI's and stable-diffusion.cpp's APIs, as the examples of their pages ask them."""

import base64
import io
import time
import unittest

import requests
from PIL import Image

from worker import SIDE, STEPS, Worker


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker()

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def post(self, path, body, status=200):
        answer = requests.post(f"{self.worker.url}/{path}", json=body, timeout=60)
        self.assertEqual(answer.status_code, status, answer.text)
        return answer.json()

    def test_swarm(self):
        session = {"session_id": self.post("API/GetNewSession", {})["session_id"]}
        (model,) = self.post("API/ListModels", session | {"path": "", "depth": 2})["files"]
        size = {"width": SIDE, "height": SIDE, "steps": STEPS}
        body = session | size | {"images": 1, "prompt": "a cat", "model": model["name"], "seed": 5}
        (address,) = self.post("API/GenerateText2Image", body)["images"]
        file = requests.get(f"{self.worker.url}/{address}", timeout=60)
        self.assertEqual(Image.open(io.BytesIO(file.content)).size, (SIDE, SIDE))
        refused = self.post("API/GenerateText2Image", {"session_id": "old", "prompt": "x"}, 401)
        self.assertEqual(refused["error_id"], "invalid_session_id")

    def test_sdcpp(self):
        told = requests.get(f"{self.worker.url}/sdcpp/v1/capabilities", timeout=60).json()
        # What it is by default can be asked for.
        body = told["defaults"] | {"prompt": "a cat", "width": SIDE, "height": SIDE, "seed": 5, "output_format": "webp"}
        body["sample_params"]["sample_steps"] = STEPS
        url = self.post("sdcpp/v1/img_gen", body, 202)["poll_url"]
        deadline = time.monotonic() + 60
        while True:
            job = requests.get(self.worker.url + url, timeout=60).json()
            if job["status"] not in ("queued", "generating"):
                break
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        (image,) = job["result"]["images"]
        self.assertEqual(Image.open(io.BytesIO(base64.b64decode(image["b64_json"]))).format, "WEBP")


if __name__ == "__main__":
    unittest.main()
