"""The chat page in a browser: chats, messages, settings, files, and who uses it how."""

import json
import unittest

from selenium.webdriver.common.keys import Keys

from browser import DESK, NARROWEST, PHONE, OnStage

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]

SAMPLE = """# Sorting, briefly

A **stable** sort keeps equal items in their order: [see here](https://example.org/sort), or `sorted()`.

| Algorithm | Best | Worst | Stable |
|:--|:-:|--:|--|
| Merge sort | $n \\log n$ | $n \\log n$ | yes |
| Quicksort | $n \\log n$ | $n^2$ | no |

```python
def smallest(items: list[int]) -> int:
    \"\"\"The smallest of some numbers.\"\"\"
    return min(items, default=0)  # 0 for none
```

$$T(n) = 2\\,T\\!\\left(\\frac{n}{2}\\right) + \\Theta(n)$$

1. Split the list.
2. Sort both halves.
"""


class Chats(OnStage):
    def test_chats_are_kept(self):
        self.until_equal(lambda: self.find("#model").text, "tiny")
        self.assertEqual(self.say("Are dogs real?"), "You said: Are dogs real?")
        self.assertEqual(self.texts(".user .body"), ["Are dogs real?"])
        self.until_text("1 token, 31.4 tokens/s", ".assistant .foot")
        self.until_equal(lambda: self.find("#context").text, "43 of 4,096 tokens")
        self.say("Why?")
        sent = self.stage.requests[-1]["messages"]
        self.assertEqual([message["role"] for message in sent], ["user", "assistant", "user"])
        address = self.browser.current_url
        self.click("#new")
        self.until_equal(self.answers, [])
        self.say("Another matter")
        self.until(lambda: self.browser.current_url != address)
        # The address says which chat it is, also after the page is loaded again.
        self.open(f"/#{address.split('#')[1]}")
        self.until_equal(self.answers, ["You said: Are dogs real?", "You said: Why?"])
        self.until_equal(self.titles, ["Another matter", "Are dogs real?"])
        self.find("#input").send_keys("begun here")
        self.browser.back()
        self.until_equal(self.answers, ["You said: Another matter"])
        # What was begun waits in its chat.
        self.until_equal(lambda: self.find("#input").get_attribute("value"), "")
        self.browser.forward()
        self.until_equal(lambda: self.find("#input").get_attribute("value"), "begun here")

    def test_the_list(self):
        for text in ("Apples and pears", "Boats", "Cats"):
            self.click("#new")
            self.until_equal(self.answers, [])
            self.say(text)
        # Search looks in titles and in messages.
        self.find("#search").send_keys("SAID: boats")
        self.until_equal(self.titles, ["Boats"])
        self.find("#search").send_keys(Keys.ESCAPE)
        self.until_equal(self.titles, ["Cats", "Boats", "Apples and pears"])

        def menu(index, item):
            self.click(f"#chats li:nth-child({index}) > .icon-button")
            self.until(lambda: len(self.all(".menu button")) > item)
            self.all(".menu button")[item].click()

        menu(2, 0)
        self.until_focus("#chats input")
        self.press("Ships", Keys.ENTER)
        self.until_equal(self.titles, ["Cats", "Ships", "Apples and pears"])
        menu(1, 2)
        self.until_equal(self.titles, ["Ships", "Apples and pears"])
        self.until_equal(self.answers, [])
        self.click(".notice .quiet")
        self.until_equal(self.titles, ["Cats", "Ships", "Apples and pears"])
        self.until_equal(self.answers, ["You said: Cats"])
        # Deleted for good once nobody undoes it.
        menu(2, 2)
        self.until_equal(self.titles, ["Cats", "Apples and pears"])
        self.reload()
        self.until_equal(self.titles, ["Cats", "Apples and pears"])
        self.until_equal(lambda: len(self.stored("messages")), 4)

    def test_chats_leave_and_come_back_as_files(self):
        self.say("Take this along")
        chats = self.module("store.js", """{
            const store = await module.Store.open();
            const [conversation] = await store.conversations();
            return { conversation, messages: await store.messages(conversation.id) };
        }""")
        exported = self.module("transfer.js", """{
            let text;
            const create = URL.createObjectURL;
            URL.createObjectURL = (blob) => { text = blob.text(); return create(blob); };
            module.exportChats([given[0]], "chat");
            URL.createObjectURL = create;
            return text;
        }""", chats)
        self.assertEqual(json.loads(exported)["chats"][0]["title"], "Take this along")
        # Beside the old one, under another name.
        self.click("#settings-open")
        self.click("#tab-page")
        give = """
            const data = new DataTransfer();
            data.items.add(new File([arguments[0]], "chats.json"));
            const field = document.getElementById("import-file");
            field.files = data.files;
            field.dispatchEvent(new Event("change"));
        """
        self.browser.execute_script(give, exported)
        self.until_equal(self.titles, ["Take this along"] * 2)
        self.until_equal(lambda: len(self.stored("messages")), 4)
        for bad in ("{", '{"chats": []}', '{"format": "llm-worker-chats", "version": 2, "chats": []}'):
            self.browser.execute_script("document.querySelectorAll('.notice').forEach((node) => node.remove())")
            self.browser.execute_script(give, bad)
            self.until(lambda: self.all(".notice.error"))
        self.close_settings()
        self.click("#chats li:not(.current) a")
        self.until_equal(self.answers, ["You said: Take this along"])

    def test_two_tabs_overwrite_nothing(self):
        self.say("From the first")
        first = self.browser.current_window_handle
        address = self.browser.current_url
        self.browser.switch_to.new_window("tab")
        try:
            self.browser.get(address)
            self.until(lambda: self.find("#send").is_enabled())
            self.until_equal(self.answers, ["You said: From the first"])
            self.say("From the second")
            self.browser.switch_to.window(first)
            # It has come over by itself.
            self.until_equal(self.answers, ["You said: From the first", "You said: From the second"])
            self.say("And again")
            self.browser.switch_to.window(self.browser.window_handles[-1])
            self.until_equal(self.answers, ["You said: From the first", "You said: From the second", "You said: And again"])
        finally:
            self.browser.switch_to.window(self.browser.window_handles[-1])
            self.browser.close()
            self.browser.switch_to.window(first)
        self.until_equal(lambda: len(self.stored("messages")), 6)

    def test_a_damaged_store_is_left_out(self):
        self.say("A sound chat")
        id = self.browser.current_url.split("#")[1]
        good = {"conversation": id, "role": "user", "content": "x", "created": 1}
        self.store("conversations", [{"id": "empty"}, {"id": "odd", "title": 7, "settings": [1], "leaf": {}, "updated": "x"}])
        self.store("messages", [
            {"id": "a", **good, "parent": "b"}, {"id": "b", **good, "parent": "a"}, {"id": "c", **good, "parent": "c"},
            {"id": "d", **good, "content": None, "attachments": [{"kind": "picture", "url": "https://example.org/x.png"}, 7]},
            {"id": "e", "conversation": id, "role": "devil"}, {"id": "f", **good, "calls": {"length": 1e9}, "figures": "x"},
        ])
        self.reload()
        self.until_equal(self.answers, ["You said: A sound chat"])
        self.until_equal(lambda: sorted(self.titles()), ["A sound chat", "Untitled", "Untitled"])
        self.say("It goes on")
        self.assertEqual(self.all(".message img"), [])

    def test_a_chat_that_ends_the_page_does_so_once(self):
        # Many marks, so that formatted and plain look different.
        self.stage.texts["bold"] = "**bold**"
        self.say("show bold")
        id = self.browser.current_url.split("#")[1]
        self.until_equal(lambda: self.texts(".assistant strong"), ["bold"])
        self.until_equal(lambda: self.js("localStorage.getItem('opening')"), None)
        self.js("localStorage.setItem('opening', arguments[0])", id)
        self.reload()
        self.until_equal(self.answers, ["**bold**"])
        self.until_text("plain text", ".notice")
        self.click(".notice .quiet")
        self.until_equal(lambda: self.texts(".assistant strong"), ["bold"])

    def test_a_store_that_is_cleared_is_begun_anew(self):
        self.say("Before")
        self.forget(self.stage.url)
        self.click("#new")
        self.until_equal(self.answers, [])
        self.say("After")
        self.until_equal(self.titles, ["After"])
        self.until_equal(lambda: [self.texts(".notice.error"), len(self.stored("messages"))], [[], 2])

    def test_a_browser_that_keeps_nothing_still_talks(self):
        source = {"source": "Object.defineProperty(window, 'indexedDB', { value: undefined })"}
        script = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
        try:
            self.reload()
            self.until_text("keeps no chats", ".notice.error")
            self.assertEqual(self.say("Hello"), "You said: Hello")
            self.until_equal(self.titles, ["Hello"])
        finally:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


class Messages(OnStage):
    def test_messages_have_versions(self):
        self.say("One")
        self.say("Two")
        self.js("[...document.querySelectorAll('.user [data-action=edit]')][0].click()")
        self.find(".edit").send_keys(" and a half", Keys.CONTROL, Keys.ENTER)
        self.until_equal(self.answers, ["You said: One and a half"])
        self.assertEqual(len(self.stage.requests[-1]["messages"]), 1)
        self.until_equal(lambda: self.texts(".versions"), ["2/2"])
        # Back to the first, with all that came after it.
        self.click(".versions button")
        self.until_equal(self.answers, ["You said: One", "You said: Two"])
        self.until_focus(".versions button")
        self.reload()
        self.until_equal(self.answers, ["You said: One", "You said: Two"])
        # Another answer to the same; what is drawn anew meanwhile keeps the focus.
        self.js("document.querySelector('.user [data-action=copy]').focus()")
        self.act("retry")
        self.until_equal(lambda: self.texts(".versions"), ["1/2", "2/2"])
        self.settle()
        self.until_focus(".user [data-action=copy]")
        self.assertEqual(len(self.stage.requests[-1]["messages"]), 3)
        # An answer that a person has written.
        self.js("[...document.querySelectorAll('.assistant [data-action=edit]')].at(-1).click()")
        self.find(".edit").send_keys(" indeed")
        self.click(".editor .primary")
        self.until_equal(self.answers, ["You said: One", "You said: Two indeed"])
        self.until_equal(lambda: self.texts(".versions"), ["1/2", "3/3"])
        # Deleted with what follows, and brought back.
        self.act("delete", 1)
        self.until_equal(self.answers, [])
        self.click(".notice .quiet")
        self.until_equal(self.answers, ["You said: One", "You said: Two indeed"])
        # The arrow edits the last message, Escape leaves it as it was.
        self.find("#input").send_keys(Keys.ARROW_UP)
        self.until_focus(".edit")
        self.press(Keys.ESCAPE)
        self.until_equal(lambda: self.texts(".user .bubble"), ["One", "Two"])

    def test_an_answer_is_stopped_and_goes_on(self):
        self.begin("slow")
        self.until(lambda: "tokens/s" in self.find("#status").text and "word2 " in self.answers()[0])
        self.until_hidden("#send")
        self.press(Keys.ESCAPE)
        self.settle()
        self.until(lambda: "gone" in self.stage.requests)
        self.until_text("Stopped", ".assistant .foot")
        before = self.answers()[0]
        self.act("continue")
        self.until_equal(self.answers, [before + " and goes on"])
        self.settle()
        sent = self.stage.requests[-1]
        self.assertEqual((sent["continue_final_message"], sent["messages"][-1]["content"].strip()), (True, before))
        self.say("length")
        self.until_in("Cut off at the limit", lambda: self.texts(".assistant .foot")[1])
        self.act("continue")
        self.until_equal(lambda: self.answers()[1], "It begins and goes on")

    def test_an_answer_survives_the_page(self):
        self.begin("slow")
        self.until(lambda: any("word20 " in message["content"] for message in self.stored("messages")))
        # No second answer in the same chat; another chat can be held meanwhile.
        self.act("edit", 0)
        self.click(".editor .primary")
        self.until(lambda: "stop it first" in self.find(".notice").text)
        self.click("#new")
        self.until_equal(self.answers, [])
        self.say("Something else")
        self.until_equal(lambda: len(self.all("#chats .dot")), 1)
        self.browser.back()
        self.until(lambda: self.find("#stop").is_displayed() and "word30 " in self.answers()[0])
        self.reload()
        self.until(lambda: "Interrupted" in self.texts(".assistant .foot")[0])
        self.until_in("word20 ", lambda: self.answers()[0])
        self.until_equal(lambda: len(self.all("[data-action=continue]")), 1)

    def test_failures_are_told(self):
        self.begin("break")
        self.until(lambda: self.all(".message .error"))
        self.until_text("connection ended", ".message .error")
        self.until_in("Half an", lambda: self.answers()[0])
        self.say("Still here?")
        self.stage.health = (503, {"status": "loading", "progress": 0.25, "model": "tiny", "device": {}})
        self.browser.refresh()
        self.until_equal(lambda: self.find("#status").text, "Loading the model: 25 %")
        self.until(lambda: not self.find("#send").is_enabled())
        self.stage.health = (200, {"status": "healthy", "model": "tiny", "device": {}})
        self.until(lambda: self.find("#send").is_enabled())

    def test_thoughts_and_calls_are_folded(self):
        self.stage.gate.clear()
        self.begin("think **Yes.**")
        self.until(lambda: "Reading the prompt: 50 % of 80 tokens" in self.find("#status").text)
        self.stage.gate.set()
        self.settle()
        self.until_equal(lambda: self.texts(".thoughts summary"), ["Thoughts"])
        self.until_hidden(".thoughts .text")
        self.click(".thoughts summary")
        self.until_equal(lambda: self.texts(".thoughts strong"), ["think"])
        self.until_equal(lambda: self.texts(".assistant .body > .text"), ["Yes."])
        self.set("tools", "tools", json.dumps(TOOLS))
        self.close_settings()
        self.say("tool")
        self.assertEqual(self.stage.requests[-1]["tools"], TOOLS)
        self.until_text("Calls weather", ".call summary")
        self.until_hidden(".call pre")
        self.click(".call summary")
        self.until_equal(lambda: self.find(".call pre").text, '{\n  "city": "Oslo",\n  "days": 2\n}')
        self.find(".result").send_keys("Rain")
        self.click(".send-results")
        self.until(lambda: self.answers()[-1] == "The tool says: Rain")
        sent = self.stage.requests[-1]["messages"][-2:]
        self.assertEqual(sent[0]["tool_calls"][0]["function"], {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'})
        self.assertEqual(sent[1], {"role": "tool", "tool_call_id": "call_1", "content": "Rain"})
        self.until_equal(lambda: self.all(".send-results"), [])

    def test_files_go_along(self):
        for _ in range(2):
            self.paste_picture()
        self.click(".thumbnail .icon-button")
        self.until(lambda: len(self.all(".thumbnail")) == 1)
        self.give_files("drop", ("a.wav", "audio/wav", "RIFF"), ("notes.md", "", "# Title\n```\nx\n```"))
        self.until(lambda: len(self.all(".thumbnail")) == 3)
        self.say("What is this?")
        picture, sound, text = self.stage.requests[-1]["messages"][0]["content"]
        self.assertTrue(picture["image_url"]["url"].startswith("data:image/png;base64,"))
        self.assertEqual(sound["input_audio"], {"data": "UklGRg==", "format": "wav"})
        self.assertEqual(text["text"], "notes.md:\n````\n# Title\n```\nx\n```\n````\n\nWhat is this?")
        self.reload()
        self.until(lambda: len(self.all(".user img, .user audio, .user .file")) == 3)
        # What cannot go along is said, and nothing is sent.
        self.stage.modalities = {"vision": False, "audio": False}
        self.reload()
        for name, kind, words in [
            ("a.png", "image/png", "takes no pictures"),
            ("a.mp3", "audio/mpeg", "takes no sounds"),
            ("a.pdf", "application/pdf", "is a PDF"),
            ("a.bin", "", "no picture, sound or text"),
        ]:
            self.give_files("drop", (name, kind, "\0"))
            self.until(lambda: any(words in text for text in self.texts(".notice.error")))
        self.assertEqual(self.all(".thumbnail"), [])


class SettingsAndServer(OnStage):
    def test_settings_are_sent_and_kept(self):
        self.set("sampling", "temperature", "0.3")
        self.until_equal(lambda: self.find("#field-top_k").get_attribute("placeholder"), "40")
        self.until_equal(lambda: self.find("#field-samplers").get_attribute("placeholder"), "penalties\ntop_k\ntemperature")
        self.set("chat", "system", "Be brief.")
        self.set("chat", "stop", "END\n\\n\\n")
        self.set("chat", "enable_thinking", "false")
        self.set("penalties", "dry_multiplier", "0.8")
        self.set("form", "json_schema", "{")
        self.until_text("no JSON", "#field-json_schema-error")
        self.close_settings()
        self.begin("Hello")
        self.until(lambda: self.all(".message .error"))
        self.assertEqual(self.stage.requests, [])
        self.click(".error .quiet")
        self.until_focus("#field-json_schema")
        self.set("form", "json_schema", '{"type": "object"}')
        self.set("tools", "extra", '{"logit_bias": {"5": 1}}')
        self.close_settings()
        self.act("retry")
        self.until(lambda: self.stage.requests)
        self.settle()
        sent = self.stage.requests[-1]
        self.assertEqual(sent["messages"], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
        wanted = {
            "temperature": 0.3,
            "stop": ["END", "\n\n"],
            "enable_thinking": False,
            "dry_multiplier": 0.8,
            "json_schema": {"type": "object"},
            "logit_bias": {"5": 1},
            "return_progress": True,
        }
        self.assertEqual({name: sent.get(name) for name in wanted}, wanted)
        for absent in ("top_k", "system", "extra", "model", "lora", "tools"):
            self.assertNotIn(absent, sent)
        # They belong to this chat ...
        self.reload()
        self.click("#chat-settings")
        self.click("#tab-sampling")
        self.until_equal(lambda: self.find("#field-temperature").get_attribute("value"), "0.3")
        self.close_settings()
        self.click("#new")
        self.until_equal(self.answers, [])
        self.say("Another")
        self.assertNotIn("temperature", self.stage.requests[-1])
        # ... unless they are to be those of new ones.
        self.set("sampling", "min_p", "0.1")
        self.click(".dialog-foot .quiet:nth-child(2)")
        self.close_settings()
        self.click("#new")
        self.until_equal(self.answers, [])
        self.say("A third")
        self.assertEqual(self.stage.requests[-1]["min_p"], 0.1)

    def test_what_the_server_refuses_is_shown_where_it_is_set(self):
        self.begin("refuse temperature")
        self.until(lambda: self.all(".message .error"))
        self.until_text("temperature 7 is not from 0 to 2", ".message .error")
        self.click(".error .quiet")
        self.until_focus("#field-temperature")
        self.until_equal(lambda: self.find("#field-temperature-error").text, "temperature 7 is not from 0 to 2")
        self.close_settings()
        # A field that is none of the page's.
        self.click("#new")
        self.until_equal(self.answers, [])
        self.begin("refuse magic")
        self.until(lambda: self.all(".message .error"))
        self.assertEqual(self.all(".error .quiet"), [])

    def test_a_key_is_asked_for(self):
        self.stage.key = "secret"
        self.reload()
        self.until(lambda: self.find("#key-dialog").is_displayed())
        self.click("#key-dialog .quiet")
        self.until_hidden("#key-dialog")
        self.begin("Hello")
        self.until_shown("#key-dialog")
        self.until_text("Authorization", ".message .error")
        self.find("#key-field").send_keys("secret", Keys.ENTER)
        # What was refused is asked again.
        self.until_equal(self.answers, ["You said: Hello"])
        self.until_equal(lambda: self.js("[sessionStorage.getItem('key'), JSON.stringify(localStorage).includes('secret')]"), ["secret", False])
        self.reload()
        self.say("Again")

    def test_models_and_adapters_are_chosen(self):
        state = lambda value: {"status": {"value": value}}
        self.stage.models = [{"id": "large", **state("loaded")}, {"id": "small", **state("unloaded")}, {"id": "large:pirate", "parent": "large"}]
        self.stage.adapters = [{"id": 0, "name": "pirate", "scale": 1.0}, {"id": 1, "path": "/poet.gguf", "scale": 0.0}]
        self.reload()
        self.until_equal(lambda: self.texts("#models option"), ["large", "small (not loaded)"])
        self.js("(() => { const node = document.getElementById('models'); node.value = 'small'; node.dispatchEvent(new Event('change')); })()")
        # A request loads it, and the page does not do so by itself.
        self.assertNotIn("/props?model=small", self.stage.asked)
        self.stage.models[1].update(state("loaded"))
        self.say("Hello")
        self.until(lambda: "/lora-adapters?model=small" in self.stage.asked)
        self.until_equal(lambda: self.texts("#models option"), ["large", "small"])
        self.assertEqual(self.stage.requests[-1]["model"], "small")
        self.assertNotIn("lora", self.stage.requests[-1])
        self.click("#chat-settings")
        self.click("#tab-adapters")
        self.until(lambda: not self.find("#lora-0").is_enabled())
        self.click("#lora-own")
        self.browser.execute_script("const node = document.getElementById('lora-1'); node.value = '0.5'; node.dispatchEvent(new Event('change'))")
        self.close_settings()
        self.say("Ahoy")
        self.assertEqual(self.stage.requests[-1]["lora"], [{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}])
        self.stage.asked.clear()
        self.reload()
        self.until_equal(lambda: self.js("document.getElementById('models').value"), "small")
        self.until_in("/props?model=small", lambda: self.stage.asked)


class Use(OnStage):
    def overflow(self):
        return self.js("[document.documentElement.scrollWidth - innerWidth, document.getElementById('messages').scrollWidth - document.getElementById('messages').clientWidth]")

    def test_colours_follow_the_system_or_the_user(self):
        colour = lambda: self.js("getComputedStyle(document.body).backgroundColor")
        light = colour()
        self.resize(DESK, dark=True)
        self.until(lambda: colour() != light)
        dark = colour()
        self.click("#settings-open")
        self.click("#tab-page")
        choose = "const node = document.getElementById('theme'); node.value = arguments[0]; node.dispatchEvent(new Event('change'))"
        self.browser.execute_script(choose, "light")
        self.until_equal(colour, light)
        self.reload()
        self.until_equal(colour, light)
        self.resize(DESK)
        self.click("#settings-open")
        self.click("#tab-page")
        self.browser.execute_script(choose, "dark")
        self.until_equal(colour, dark)

    def test_the_keyboard_is_enough(self):
        self.until_focus("#input")
        self.find("#input").send_keys("Line", Keys.SHIFT, Keys.ENTER, Keys.NULL, "and line", Keys.ENTER)
        self.until_equal(self.answers, ["You said: Line\nand line"])
        self.chord(Keys.CONTROL, Keys.SHIFT, "o")
        self.until_equal(self.answers, [])
        self.say("Second")
        self.chord(Keys.CONTROL, "k")
        self.until_focus("#search")
        self.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
        self.until_equal(self.answers, ["You said: Line\nand line"])
        # The settings' tabs by arrows, and out of them by Escape.
        self.find("#chat-settings").send_keys(Keys.ENTER)
        self.until_shown("#tab-chat")
        self.find("#tab-chat").send_keys(Keys.ARROW_RIGHT)
        self.until_focus("#tab-sampling[aria-selected=true]")
        self.press(Keys.ESCAPE)
        self.until_hidden("#settings")
        # Whoever uses keys sees where they are.
        self.press(Keys.TAB)
        self.until(lambda: self.js("getComputedStyle(document.activeElement).outlineStyle") != "none")

    def test_every_control_has_a_name(self):
        self.set("tools", "tools", json.dumps(TOOLS))
        self.close_settings()
        self.paste_picture()
        self.say("tool")
        self.click("#chats li > .icon-button")
        nameless = """(() => {
            const named = (node) => node.getAttribute("aria-label") || node.innerText?.trim() || node.labels?.length || node.alt;
            return [...document.querySelectorAll("button, input:not([type=file]), textarea, select, a, img, summary")]
              .filter((node) => !named(node)).map((node) => node.outerHTML);
        })()"""
        self.assertEqual(self.js(nameless), [])
        for tab in ("chat", "sampling", "penalties", "form", "tools", "page"):
            self.click("#settings-open")
            self.click(f"#tab-{tab}")
            self.assertEqual(self.js(nameless), [], tab)
        self.close_settings()
        self.assertEqual(self.find("#announcer").get_attribute("role"), "status")
        self.until_equal(lambda: self.find("#announcer").get_attribute("textContent"), "The answer is complete.")

    def test_narrow_pages(self):
        self.stage.texts["wide"] = SAMPLE + "\n`" + "x" * 300 + "`\n\n| " + "a | " * 40 + "\n|" + "-|" * 40 + "\n"
        for size in (NARROWEST, PHONE, DESK):
            self.resize(size)
            self.open()
            self.say("show wide")
            # Nothing is wider than the page; what is wide scrolls in itself.
            self.until_equal(lambda: (size, self.overflow()), (size, [0, 0]))
            self.click("#chat-settings")
            self.until_equal(lambda: (size, self.overflow()[0]), (size, 0))
            beyond = "[...document.querySelectorAll('#panel *')].filter((node) => node.getBoundingClientRect().right > innerWidth).length"
            self.until_equal(lambda: (size, self.js(beyond)), (size, 0))
            self.close_settings()
        self.resize(PHONE)
        self.until_hidden("#chats")
        self.until_shown("#menu")
        self.find("#menu").click()
        self.until_shown("#chats a")
        self.until(lambda: self.js("document.querySelector('main').inert"))
        self.press(Keys.ESCAPE)
        self.until_hidden("#chats")
        self.until_focus("#menu")
        self.find("#menu").click()
        self.until_shown("#chats li:nth-child(2) a")
        self.find("#chats li:nth-child(2) a").click()
        self.until_hidden("#chats")

    def test_nothing_jumps(self):
        shift = """
            window.shift = 0;
            new PerformanceObserver((list) => {
              for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
            }).observe({ type: "layout-shift", buffered: true });
        """
        self.reload()
        self.browser.execute_script(shift)
        self.until(lambda: self.js("window.shift") is not None)
        self.assertLess(self.js("window.shift"), 0.02)
        dock = lambda: self.find("#dock").rect
        before = dock()
        self.begin("slow")
        self.until(lambda: "word9 " in self.answers()[0])
        self.assertEqual(dock(), before)
        self.click("#stop")
        self.settle()
        self.assertEqual(dock(), before)

    def test_who_reads_is_not_moved(self):
        self.stage.texts["long"] = "Some words.\n\n" * 100
        self.say("show long")
        end = lambda: self.js("(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)(document.getElementById('messages'))")
        self.until(lambda: end() < 2)
        self.js("document.getElementById('messages').scrollTop = 100")
        self.until_shown("#to-end")
        self.js("document.querySelector('.assistant [data-action=retry]').click()")
        self.until_equal(lambda: len(self.stage.requests), 2)
        self.settle()
        self.begin("slow")
        self.until(lambda: "word9 " in self.answers()[-1])
        self.until(lambda: end() < 2)
        self.js("document.getElementById('messages').scrollTop = 100")
        self.until(lambda: "word30 " in self.answers()[-1])
        self.assertEqual(self.js("document.getElementById('messages').scrollTop"), 100)
        self.click("#to-end")
        self.until(lambda: end() < 2)
        self.click("#stop")
        self.settle()

    def test_pictures_of_the_page(self):
        question = "How does merge sort work?"
        self.stage.texts[question] = SAMPLE
        self.screenshot("empty")
        self.set("tools", "tools", json.dumps(TOOLS))
        self.close_settings()
        self.say("think It is **cold** and clear in Oslo.")
        self.paste_picture()
        self.say("tool: and the days after?")
        self.say(question)
        for size, name in ((DESK, "desk"), (PHONE, "phone")):
            for dark in (False, True):
                self.resize(size, dark)
                shade = "dark" if dark else "light"
                self.js("document.getElementById('messages').scrollTop = 0")
                self.screenshot(f"{name}-{shade}-chat")
                self.js("document.querySelectorAll('.assistant')[2].scrollIntoView()")
                self.screenshot(f"{name}-{shade}-markdown")
                self.set("sampling", "temperature", "")
                self.screenshot(f"{name}-{shade}-settings")
                self.close_settings()
        self.click("#menu")
        self.until(lambda: self.find("#chats a").is_displayed())
        self.screenshot("phone-dark-list")


if __name__ == "__main__":
    unittest.main()
