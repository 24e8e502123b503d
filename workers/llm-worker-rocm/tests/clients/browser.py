"""Chromium without a window, with the page of a stage in it, and what the page's tests do there."""

import atexit
import functools
import json
import shutil
import unittest
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import worker
from stage import Stage, of_worker

SCREENSHOTS = Path(worker.PROGRAM).parent.parent / "screenshots"
DESK, PHONE, NARROWEST = (1280, 800), (390, 844), (320, 640)
# What a test refuses on purpose is in the browser's log, too.
EXPECTED = ("401", "400", "404", "503", "ERR_CONNECTION", "ERR_INCOMPLETE")


def chromium():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Named, so that nothing is looked for on the network.
    options.binary_location = shutil.which("chromium")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


@functools.cache
def shared():
    """A worker, a stage with its page, and a browser, for all tests of a run."""
    real = worker.Worker("--api-key", "secret", "--context", "1024", "--temperature", "0")
    atexit.register(real.stop)
    stage = Stage(of_worker(real.url))
    atexit.register(stage.stop)
    browser = chromium()
    atexit.register(browser.quit)
    return real, stage, browser


class OnStage(unittest.TestCase):
    """Tests of the page in front of scripted models. Its files are those of a real worker."""

    @classmethod
    def setUpClass(cls):
        cls.worker, cls.stage, cls.browser = shared()

    @property
    def url(self):
        """Where the page is."""
        return self.stage.url

    def setUp(self):
        self.stage.reset()
        self.browser.get("about:blank")
        self.forget(self.url)
        self.resize(DESK)
        self.open()

    def tearDown(self):
        """Nothing that the policy forbids was tried, and no script failed."""
        severe = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual([message for message in severe if not any(word in message for word in EXPECTED)], [])

    def forget(self, origin):
        self.browser.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})

    def open(self, path="/"):
        self.browser.get(self.url + path)
        self.until(lambda: self.find("#send").is_enabled())

    def reload(self):
        self.browser.refresh()
        self.until(lambda: self.find("#send").is_enabled())

    def resize(self, size, dark=False):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # Nothing moves while it is looked at.
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, motion]})

    def screenshot(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    # Looking ---------------------------------------------------------------------------------------

    def find(self, selector):
        """The first one, once it is there."""
        self.until(lambda: self.all(selector), 15)
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def js(self, script, *arguments):
        return self.browser.execute_script(f"return {script}", *arguments)

    def texts(self, selector):
        return self.js("[...document.querySelectorAll(arguments[0])].map((node) => node.innerText.trim())", selector)

    def has_focus(self, selector):
        return self.js("document.activeElement?.matches(arguments[0]) ?? false", selector)

    def until(self, condition, seconds=30):
        WebDriverWait(self.browser, seconds, poll_frequency=0.02, ignored_exceptions=(Exception,)).until(lambda _: condition())

    def until_equal(self, look, wanted):
        try:
            self.until(lambda: look() == wanted, 15)
        except Exception:
            self.assertEqual(look(), wanted)
            raise

    # The page draws what was done at its next frame: what is looked for is waited for.

    def until_in(self, part, look):
        try:
            self.until(lambda: part in look(), 15)
        except Exception:
            self.assertIn(part, look())
            raise

    def until_text(self, part, selector):
        """Until the first such element has `part` in its text."""
        self.until_in(part, lambda: self.find(selector).text)

    def until_shown(self, selector):
        self.until(lambda: self.find(selector).is_displayed(), 15)

    def until_hidden(self, selector):
        self.until(lambda: not self.find(selector).is_displayed(), 15)

    def until_focus(self, selector):
        focus = lambda: self.js("document.activeElement?.outerHTML.slice(0, 300)")
        try:
            self.until(lambda: self.has_focus(selector), 15)
        except Exception:
            self.assertTrue(self.has_focus(selector), f"{selector} has no focus, but {focus()}")
            raise

    def answers(self):
        return self.texts(".assistant .body")

    def titles(self):
        return self.texts("#chats a")

    # Acting ----------------------------------------------------------------------------------------

    def press(self, *keys):
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def chord(self, *keys):
        actions = webdriver.ActionChains(self.browser, duration=0)
        for key in keys[:-1]:
            actions.key_down(key)
        actions.send_keys(keys[-1])
        for key in keys[:-1]:
            actions.key_up(key)
        actions.perform()

    def click(self, selector):
        # By script: what a pointer finds there is another test's matter.
        self.until(lambda: self.find(selector))
        self.js("document.querySelector(arguments[0]).click()", selector)

    def begin(self, text):
        """Sends a message and does not wait for its answer."""
        self.find("#input").send_keys(text, Keys.ENTER)

    def say(self, text):
        """Sends a message; gives the answer once it is complete."""
        before = len(self.all(".assistant"))
        self.begin(text)
        self.until(lambda: len(self.all(".assistant")) > before)
        self.settle()
        return self.answers()[-1]

    def settle(self):
        self.until(lambda: not self.all(".running") and not self.find("#stop").is_displayed())

    def act(self, name, index=-1):
        """Presses the button of a message."""
        self.js(f"[...document.querySelectorAll('.message [data-action={name}]')].at(arguments[0]).click()", index)

    def set(self, tab, name, value):
        """Sets a field of the settings, which stay open."""
        if not self.find("#settings").is_displayed():
            self.click("#chat-settings")
        self.click(f"#tab-{tab}")
        script = """
            const node = document.getElementById(arguments[0]);
            node.value = arguments[1];
            node.dispatchEvent(new Event("change", { bubbles: true }));
        """
        self.browser.execute_script(script, f"field-{name}", value)

    def close_settings(self):
        self.js("document.getElementById('settings').close()")

    def give_files(self, event, *files):
        """Drops or pastes files: (name, type, text)."""
        script = """
            const [event, files] = arguments;
            const data = new DataTransfer();
            for (const [name, type, text] of files) data.items.add(new File([text], name, { type }));
            const options = { cancelable: true, bubbles: true };
            if (event === "paste") {
              document.getElementById("input").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, ...options }));
            } else document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, ...options }));
        """
        self.browser.execute_script(script, event, files)

    def paste_picture(self, is_taken=True):
        script = """
            const done = arguments[arguments.length - 1];
            const canvas = document.createElement("canvas");
            canvas.width = canvas.height = 64;
            const context = canvas.getContext("2d");
            context.fillStyle = "seagreen";
            context.fillRect(8, 8, 48, 48);
            canvas.toBlob((blob) => {
              const clipboardData = new DataTransfer();
              clipboardData.items.add(new File([blob], "a.png", { type: "image/png" }));
              const paste = new ClipboardEvent("paste", { clipboardData, cancelable: true, bubbles: true });
              document.getElementById("input").dispatchEvent(paste);
              done();
            });
        """
        before = len(self.all("#attachments .picture"))
        self.browser.execute_async_script(script)
        if is_taken:
            self.until(lambda: len(self.all("#attachments .picture")) == before + 1)

    def module(self, name, body, *arguments):
        """Runs `body`, with the page's module as `module` and the arguments as `given`; gives what it returns."""
        script = f"""
            const given = [...arguments];
            const done = given.pop();
            const base = document.querySelector("script[src]").src;
            import(new URL("./{name}", base)).then(async (module) => {body})
              .then((value) => done({{ value }}), (error) => done({{ error: `${{error}} ${{error.stack}}` }}));
        """
        result = self.browser.execute_async_script(script, *arguments)
        if "error" in result:
            raise AssertionError(result["error"])
        return result.get("value")

    def stored(self, name):
        """All records of a store."""
        script = """
            const done = arguments[arguments.length - 1];
            const request = indexedDB.open("chats");
            request.onsuccess = () => {
              const all = request.result.transaction(arguments[0]).objectStore(arguments[0]).getAll();
              all.onsuccess = () => { request.result.close(); done(JSON.stringify(all.result)); };
            };
        """
        return json.loads(self.browser.execute_async_script(script, name))

    def store(self, name, records):
        """Puts records, whatever they are."""
        script = """
            const [name, records, done] = arguments;
            const request = indexedDB.open("chats");
            request.onsuccess = () => {
              const transaction = request.result.transaction(name, "readwrite");
              for (const record of records) transaction.objectStore(name).put(record);
              transaction.oncomplete = () => { request.result.close(); done(); };
            };
        """
        self.browser.execute_async_script(script, name, records)
