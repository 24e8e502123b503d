"""The chat page as a real worker serves it, and a chat with a real model."""

import gzip
import re
import unittest
import urllib.error
import urllib.request

from browser import OnStage


class OfTheWorker(OnStage):
    @property
    def url(self):
        return self.worker.url

    def read(self, path, **headers):
        request = urllib.request.Request(self.worker.url + path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, response.headers, response.read()

    def test_files_are_compressed_and_kept(self):
        _, headers, index = self.read("/")
        self.assertEqual(headers["Cache-Control"], "no-cache")
        path = "/" + re.search(r'src="(page/\w+/app/app\.js)"', index.decode())[1]
        _, headers, packed = self.read(path, Accept_Encoding="gzip")
        _, _, plain = self.read(path)
        self.assertEqual((headers["Content-Encoding"], gzip.decompress(packed)), ("gzip", plain))
        self.assertIn("immutable", headers["Cache-Control"])
        self.assertIn("require-trusted-types-for 'script'", headers["Content-Security-Policy"])
        self.assertEqual(self.read("/", If_None_Match=headers["ETag"])[0], 304)
        # A browser that comes again asks for the first file only.
        self.open()
        self.browser.refresh()
        self.until(lambda: self.find("#send").is_enabled())
        sizes = self.js("performance.getEntriesByType('resource').filter(({ name }) => name.includes('/page/')).map(({ transferSize }) => transferSize)")
        self.assertGreater(len(sizes), 20)
        self.assertEqual(set(sizes), {0})

    def test_a_chat_with_a_model(self):
        self.until(lambda: self.find("#key-dialog").is_displayed())
        self.find("#key-field").send_keys("secret")
        self.click("#key-dialog .primary")
        self.until(lambda: self.find("#model").text == "smollm2")
        self.set("chat", "max_tokens", "12")
        self.set("sampling", "temperature", "0")
        self.until_equal(lambda: self.find("#field-temperature").get_attribute("placeholder"), "0")
        self.close_settings()
        answer = self.say("Are dogs real?")
        self.assertTrue(answer)
        self.until_text("Cut off at the limit", ".assistant .foot")
        self.assertRegex(self.texts(".assistant .foot")[0], r"12 tokens, [\d.]+ tokens/s")
        self.until(lambda: re.fullmatch(r"\d+ of 1,024 tokens", self.find("#context").text))
        self.act("continue")
        self.until(lambda: self.answers()[0].startswith(answer) and len(self.answers()[0]) > len(answer))
        self.settle()
        # The server names what it does not take.
        self.set("sampling", "top_p", "7")
        self.close_settings()
        self.begin("Why?")
        self.until(lambda: self.all(".message .error"))
        self.until_text("7 is not", ".message .error")
        self.click(".error .quiet")
        self.until_focus("#field-top_p")
        self.set("sampling", "top_p", "")
        self.close_settings()
        # This model does not see, which the page knows.
        self.paste_picture(is_taken=False)
        self.until(lambda: self.texts(".notice.error span") == ["This model takes no pictures."])
        self.assertEqual(self.all(".thumbnail"), [])

    def test_no_other_server_is_asked(self):
        loaded = self.js("performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertTrue(loaded)
        self.assertEqual([address for address in loaded if not address.startswith((self.worker.url, "data:"))], [])


if __name__ == "__main__":
    unittest.main()
