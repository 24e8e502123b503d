"""The chat page in a browser (Chromium without a window, driven by its own driver)."""

import shutil
import time
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from worker import Worker

# Long enough that it can be stopped.
LONG = "Write a very long story about a dog, a cat and a bird."

HOSTILE = """# T <b>x</b>
<img src=x onerror="window.hacked = 1"> <script>window.hacked = 1</script>
[a](javascript:window.hacked=1) [b](https://example.org/?q=1) ![c](https://example.org/x.png) `<i>`

- one
- **two**
  1. deep
     - [ ] deeper <i>x</i>

     of the deep
- three

| h | i |
|:--|--:|
| 1 \\| &lt;u&gt; | **2** <u>y</u> |
| 3 | |

<div onclick="window.hacked = 1">z</div>
<iframe src="javascript:window.hacked = 1"></iframe>

[d](JaVaScRiPt:window.hacked=1) [e](data:text/html,x) <javascript:window.hacked=1> [f]

[f]: javascript:window.hacked=1

```html
<svg onload="window.hacked = 1">
```
"""

# Drops a file that calls itself a sound.
DROP = """
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File(["RIFF"], "a.wav", { type: "audio/wav" }));
document.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true, bubbles: true }));
"""

# Pastes a picture of four pixels.
PASTE = """
const done = arguments[arguments.length - 1];
const canvas = document.createElement("canvas");
canvas.width = canvas.height = 2;
canvas.toBlob((blob) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([blob], "a.png", { type: "image/png" }));
  const paste = new ClipboardEvent("paste", { clipboardData, cancelable: true, bubbles: true });
  document.getElementById("input").dispatchEvent(paste);
  done();
});
"""

RENDER = """
const done = arguments[arguments.length - 1];
import("/markdown.js").then(({ markdown }) => {
  const box = document.createElement("div");
  box.append(...markdown(arguments[0]));
  document.body.append(box);
  const names = [...box.querySelectorAll("*")].map((node) => node.localName);
  const links = [...box.querySelectorAll("a")].map((node) => node.href);
  const outline = (node) => [...node.children].map((child) => child.localName + (child.children.length ? `(${outline(child)})` : "")).join(" ");
  const attributes = [...box.querySelectorAll("*")].flatMap((node) => node.getAttributeNames());
  const cells = [...box.querySelectorAll("td")].map((node) => node.textContent);
  const list = box.querySelector("ul");
  const lists = list && outline(list);
  const result = { names, links, attributes, cells, lists, text: box.textContent, code: box.querySelector("pre code")?.textContent };
  box.remove();
  setTimeout(() => done({ ...result, hacked: window.hacked ?? null }), 200);
}).catch((error) => done({ error: String(error) }));
"""


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker("--api-key", "secret", "--context", "1024", "--temperature", "0")
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Named, so that nothing is looked for on the network.
        options.binary_location = shutil.which("chromium")
        cls.browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.worker.stop()

    def setUp(self):
        self.browser.get(self.worker.url)
        self.browser.execute_script("localStorage.clear(); sessionStorage.clear()")
        self.browser.get(self.worker.url)
        self.until(lambda: self.find("#send").is_enabled())

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition, seconds=90):
        WebDriverWait(self.browser, seconds, poll_frequency=0.1).until(lambda _: condition())

    def set(self, name, value):
        self.find("#settings").get_attribute("open") or self.find("#settings summary").click()
        field = self.find(f"#{name}")
        field.clear()
        field.send_keys(value, Keys.TAB)

    def say(self, text):
        self.find("#input").send_keys(text, Keys.ENTER)

    def figures(self):
        return [node.text for node in self.all(".assistant .figures")]

    def test_a_chat_that_is_kept(self):
        self.assertEqual(self.find("#model").text, "smollm2")
        self.say("Are dogs real?")
        # Without the key the server refuses, and the page says why.
        self.until(lambda: self.all(".assistant .error"))
        self.assertIn("Authorization", self.find(".assistant .error").text)
        self.set("key", "secret")
        self.set("max-tokens", "12")
        self.find("#new").click()
        self.say("Are dogs real?")
        self.until(self.figures)
        self.assertRegex(self.figures()[0], r"^\d+ tokens, [\d.]+ tokens/s; prompt \d+ tokens")
        answer = self.find(".assistant").text
        self.assertEqual(self.find(".user").text, "Are dogs real?")
        self.say("Why?")
        self.until(lambda: len(self.figures()) == 2)
        # Chats stay in the browser.
        self.browser.get(self.worker.url)
        self.assertEqual(self.find(".assistant").text, answer)
        self.assertEqual(len(self.all("#messages article")), 4)
        self.assertEqual(len(self.all("#chats .title")), 2)
        self.find("#chats .remove").click()
        self.assertEqual(len(self.all("#chats .title")), 1)

    def test_an_answer_is_stopped(self):
        self.set("key", "secret")
        self.say(LONG)
        self.until(lambda: "tokens/s" in self.find("#status").text)
        self.assertFalse(self.find("#send").is_displayed())
        self.find("#stop").click()
        self.until(lambda: self.figures() == ["stopped"])
        self.assertTrue(self.find("#send").is_displayed())
        self.assertGreater(len(self.find(".assistant").text), len("stopped"))

    def test_a_picture_is_pasted_and_sent(self):
        self.set("key", "secret")
        for _ in range(2):
            self.browser.execute_async_script(PASTE)
        self.until(lambda: len(self.all("#pictures img")) == 2)
        self.find("#pictures button").click()
        self.assertEqual(len(self.all("#pictures img")), 1)
        self.say("What is this?")
        self.until(lambda: self.all(".assistant .error"))
        # This model does not see.
        self.assertIn("takes no pictures", self.find(".assistant .error").text)
        self.assertTrue(self.find(".user img").get_attribute("src").startswith("data:image/png;base64,"))
        self.assertEqual(self.all("#pictures img"), [])
        self.browser.get_log("browser")

    def test_a_sound_is_dropped_and_sent(self):
        self.set("key", "secret")
        self.browser.execute_script(DROP)
        self.until(lambda: len(self.all("#pictures button")) == 1)
        self.say("What is this?")
        self.until(lambda: self.all(".assistant .error"))
        # This model does not hear.
        self.assertIn("no sounds", self.find(".assistant .error").text)
        self.assertTrue(self.find(".user audio").get_attribute("src").startswith("data:audio/wav;base64,"))
        self.assertEqual(self.all("#pictures button"), [])
        self.browser.get_log("browser")

    def test_what_a_model_writes_stays_text(self):
        result = self.browser.execute_async_script(RENDER, HOSTILE)
        self.assertIsNone(result.get("error"))
        self.assertIsNone(result["hacked"])
        names = set(result["names"])
        self.assertFalse(names & {"img", "script", "svg", "b", "i", "u", "div", "iframe"})
        self.assertLessEqual(set(result["attributes"]), {"href", "rel", "target", "type", "start", "style"})
        self.assertLessEqual({"h1", "ul", "ol", "li", "strong", "table", "th", "td", "pre", "code"}, names)
        self.assertEqual(result["links"][0], "https://example.org/?q=1")
        self.assertTrue(all(link.startswith("https://example.org/") for link in result["links"]))
        self.assertEqual(result["code"], '<svg onload="window.hacked = 1">')
        self.assertIn("<script>", result["text"])

    def test_lists_nest_and_tables_have_cells(self):
        result = self.browser.execute_async_script(RENDER, HOSTILE)
        self.assertEqual(result["lists"], "li li(strong ol(li(p ul(li) p))) li")
        self.assertEqual(result["cells"], ["1 | <u>", "2 <u>y</u>", "3", ""])

    def test_text_that_nests_too_deeply_is_text(self):
        result = self.browser.execute_async_script(RENDER, ">" * 20000)
        self.assertEqual((result.get("error"), result["names"]), (None, ["p"]))
        self.assertEqual(len(result["text"]), 20000)

    def test_no_text_freezes_the_page(self):
        texts = {
            "table": "Name | Value\n----------------------------------- (continued)",
            "dashes": "a|b\n" + "-" * 20000 + "x",
            "cells": "a|b\n" + "-|" * 20000 + "x",
            "emphasis": "**_a " * 20000,
            "marks": "_a*" * 20000,
            "links": "[*a](" * 20000,
            "brackets": "[" * 20000,
            "ticks": "".join("`" * n + "a " for n in range(1, 300)),
            "tags": "<a b='" * 20000,
            "bullets": "* " * 20000 + "a",
            "address": "a." * 50000 + "@",
            "spaces": "a" + " " * 100000 + "b",
            "lines": "> *a\n" * 20000,
        }
        for name, text in texts.items():
            start = time.monotonic()
            result = self.browser.execute_async_script(RENDER, text)
            self.assertIsNone(result.get("error"), name)
            self.assertTrue(result["text"], name)
            # On any machine; the script waits for 0.2 s itself.
            self.assertLess(time.monotonic() - start, 10, name)
        # Code is code, however many marks it has.
        code = "**_a " * 20000
        result = self.browser.execute_async_script(RENDER, f"**b**\n```\n{code}\n```\n**c**")
        self.assertEqual((result["code"].strip(), result["names"].count("strong")), (code.strip(), 2))

    def test_no_other_server_is_asked(self):
        loaded = self.browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertTrue(loaded)
        for address in loaded:
            self.assertTrue(address.startswith((self.worker.url, "data:")), address)
        severe = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE" and "401" not in entry["message"]]
        self.assertEqual(severe, [])


if __name__ == "__main__":
    unittest.main()
