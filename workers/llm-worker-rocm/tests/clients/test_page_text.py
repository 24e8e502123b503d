"""What models write, in the chat page: Markdown, code, formulas; what is hostile, and what is very long."""

import time
import unittest

from selenium.webdriver.common.keys import Keys

from browser import OnStage

# Answers that would do something if any of them became HTML, an address or a style. `HACK` is what they would do.
HACK = "window.hacked=1"
HOSTILE = {
    "script": f"<script>{HACK}</script>",
    "image": f'<img src=x onerror="{HACK}">',
    "svg": f'<svg onload="{HACK}"><animate onbegin="{HACK}" attributeName=x dur=1s></svg>',
    "iframe": f'<iframe src="javascript:{HACK}"></iframe><iframe srcdoc="<script>{HACK}</script>"></iframe>',
    "handlers": f'<div onclick="{HACK}" onmouseover="{HACK}" style="position:fixed;inset:0">all</div>\n\n<details open ontoggle="{HACK}">x</details>',
    "inline": f'a <b onclick="{HACK}">b</b> <sub onclick="{HACK}">s</sub> <sub>good</sub> <kbd style="position:fixed">k</kbd>',
    "links": f"[a](javascript:{HACK}) [b](JaVaScRiPt:{HACK}) [c](data:text/html,x) <javascript:{HACK}> [d] [e](vbscript:x) [f](  javascript:{HACK})\n\n[d]: javascript:{HACK}",
    "escaped": f"[a](java&#115;cript:{HACK}) [b](&#x6A;avascript:{HACK}) &lt;script&gt;{HACK}&lt;/script&gt; &#60;img src=x onerror={HACK}&#62;",
    "controls": f"[a](java\tscript:{HACK}) [b](\x01javascript:{HACK}) [c](//example.org/x)",
    "pictures": "![x](https://example.org/x.png) ![y](javascript:x) ![z](data:image/svg+xml,<svg/onload=x>)\n\n[![w](https://example.org/w.png)](https://example.org)",
    "code": f"```html\n<script>{HACK}</script>\n```\n\n```\"><img src=x onerror={HACK}>\nx\n```\n\n`<script>{HACK}</script>`",
    "table": f"| <script>{HACK}</script> | <img src=x onerror={HACK}> |\n|--|--|\n| <style>*{{display:none}}</style> | <form action=https://example.org><button>x</button></form> |",
    "styles": "<style>body{display:none}</style><link rel=stylesheet href=https://example.org/x.css><base href=https://example.org><meta http-equiv=refresh content='0;url=https://example.org'>",
    "formulas": f"$\\href{{javascript:{HACK}}}{{x}}$ $\\htmlStyle{{position:fixed}}{{x}}$ $\\includegraphics{{https://example.org/x.png}}$ $\\url{{javascript:{HACK}}}$ $\\htmlData{{x=y}}{{z}}$",
    "large formulas": "$\\rule{9999em}{9999em}$ $\\kern{-9999em}x$ $\\raisebox{999em}{x}$ $\\def\\a{\\a\\a}\\a$",
    "marks": '<mark style="x">m</mark> </sub> <sub><b> <i>',
    "comments": f"<!-- --><script>{HACK}</script> -->\n\n<![CDATA[<script>{HACK}</script>]]>\n\n<?xml <script>{HACK}</script> ?>",
    "clobbering": '<a id="input" name="send">x</a> <form id=form><input name=attributes></form> # <a id=location>',
    "direction": "\u202egnp.exe\u202c \u200b\u2066x",
}

# Elements that Markdown, code and formulas are made of.
ELEMENTS = """a annotation b blockquote br button code del details div em h1 h2 h3 h4 h5 h6 hr i input kbd li mark math merror
    mfrac mi mn mo mover mpadded mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder ol p path pre s
    semantics small span strong sub summary sup svg table tbody td th thead tr u ul munderover mphantom""".split()
ATTRIBUTES = """aria-hidden aria-label class d encoding href rel start tabindex target title type viewbox viewBox xmlns width height
    checked disabled stretchy mathvariant display style preserveAspectRatio fence separator lspace rspace minsize maxsize
    voffset scriptlevel displaystyle mathbackground mathcolor linethickness columnalign columnspacing rowspacing accent""".split()

RENDER = """{
    const box = document.createElement("div");
    box.className = "text";
    document.getElementById("empty").append(box);
    box.append(...module.markdown(given[0]));
    await new Promise((done) => setTimeout(done, given[1] ?? 0));
    const nodes = [...box.querySelectorAll("*")];
    const outline = (node) => [...node.children].map((child) => child.localName + (child.children.length ? `(${outline(child)})` : "")).join(" ");
    const result = {
        names: [...new Set(nodes.map((node) => node.localName))],
        links: [...box.querySelectorAll("a")].map((node) => node.href),
        cells: [...box.querySelectorAll("td")].map((node) => node.textContent),
        outline: outline(box),
        text: box.textContent,
        code: box.querySelector("pre code")?.textContent,
    };
    box.remove();
    return result;
}"""


class Text(OnStage):
    def render(self, text, wait=0):
        return self.module("markdown.js", RENDER, text, wait)

    def test_markdown(self):
        text = "# T\n\n- one\n- **two**\n  1. deep\n     - [ ] deeper\n\n     of the deep\n- three\n\n"
        text += "| h | i |\n|:--|--:|\n| 1 \\| &lt;u&gt; | **2** <u>y</u><br>z |\n| 3 | |\n\n> quoted\n\nH<sub>2</sub>O <i>a <b>b</b></i> ~~c~~ [x](https://example.org/?q=1)"
        result = self.render(text)
        lists = "ul(li li(strong ol(li(p(input) p))) li)"
        self.assertIn(f"h1 {lists} div(table(", result["outline"].replace("li(p ul(li(input)) p)", "li(p(input) p)"))
        self.assertEqual(result["cells"], ["1 | <u>", "2 yz", "3", ""])
        self.assertTrue({"sub", "i", "b", "u", "br", "del", "blockquote"} <= set(result["names"]))
        self.assertEqual(result["links"], ["https://example.org/?q=1"])

    def test_code_is_coloured_and_copied(self):
        self.stage.texts["code"] = "```python\ndef f(x):\n    return '<b>'\n```\n\n```nonsense\nx\n```"
        self.say("show code")
        self.until(lambda: self.all(".hl-keyword"))
        self.until_equal(lambda: self.texts(".code-head > span"), ["python", "nonsense"])
        self.until_equal(lambda: self.texts(".hl-keyword"), ["def", "return"])
        self.assertEqual(self.js("document.querySelector('.code code').textContent"), "def f(x):\n    return '<b>'")
        self.browser.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        self.click(".code-head button")
        self.until_equal(lambda: self.js("window.copied"), "def f(x):\n    return '<b>'")
        self.act("copy")
        self.until_equal(lambda: self.js("window.copied"), self.stage.texts["code"])

    def test_formulas(self):
        text = "Costs $5 and $6. $a^2$, \\(b_1\\), $$\\frac{c}{2}$$\n\n\\[\nd = \\sqrt{e}\n\\]\n\n$$\nf\n$$\n\n`$g$` $\\nonsense{$"
        self.stage.texts["maths"] = text
        self.say("show maths")
        self.until(lambda: len(self.all(".formula .katex")) == 5)
        self.until_equal(lambda: len(self.all("div.formula.display .katex-display")), 3)
        self.until_equal(lambda: self.texts(".unset"), ["$\\nonsense{$"])
        self.assertTrue(self.answers()[0].startswith("Costs $5 and $6."))
        self.until(lambda: self.js("document.fonts.check('16px KaTeX_Main')"))

    def test_hostile_answers_do_nothing(self):
        address = self.browser.current_url
        for name, text in HOSTILE.items():
            self.stage.texts[name] = text
            # As an answer, as thoughts, and as what a person writes.
            self.say(f"show {name}")
        self.say(f"think {HOSTILE['image']} {HOSTILE['links']}")
        self.say(HOSTILE["image"])
        # In a name of a chat and of a file.
        self.click("#new")
        self.give_files("drop", (HOSTILE["image"], "text/plain", HOSTILE["script"]))
        self.until(lambda: self.all(".thumbnail"))
        self.say(HOSTILE["svg"])
        self.browser.back()
        self.until(lambda: len(self.all(".assistant")) == len(HOSTILE) + 2)
        self.until(lambda: not self.all(".formula:not(.unset):empty"))
        found = self.js("""(() => {
            const nodes = [...document.querySelectorAll("#messages .text *, #messages .bubble *, #messages .fold *")];
            return {
                names: [...new Set(nodes.map((node) => node.localName))],
                attributes: [...new Set(nodes.flatMap((node) => node.getAttributeNames()))],
                links: [...document.querySelectorAll("#messages a")].map((node) => node.protocol + node.rel),
                fixed: nodes.filter((node) => getComputedStyle(node).position === "fixed").length,
                hacked: window.hacked ?? null,
                shown: getComputedStyle(document.body).display,
                form: document.getElementById("form").localName,
                loaded: performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:")),
            };
        })()""")
        self.assertEqual(set(found["names"]) - set(ELEMENTS), set())
        self.assertEqual(set(found["attributes"]) - set(ATTRIBUTES), set())
        self.assertEqual({link for link in found["links"]}, {"https:noopener noreferrer"})
        self.assertEqual((found["fixed"], found["hacked"], found["shown"], found["form"]), (0, None, "grid", "form"))
        self.assertEqual(found["loaded"], [])
        self.assertEqual(self.browser.current_url.split("#")[0], address)
        # Large formulas stay in their message.
        outside = """(() => {
            const box = document.getElementById("messages");
            return [box.scrollWidth - box.clientWidth, document.documentElement.scrollHeight - innerHeight];
        })()"""
        self.assertEqual(self.js(outside), [0, 0])

    def test_the_policy_stops_what_the_page_would_let_through(self):
        wanted = ["refused", "img-src", "style-src-elem", "connect-src"]
        tried = self.browser.execute_async_script("""
            const done = arguments[arguments.length - 1];
            const stopped = [];
            document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => stopped.push(effectiveDirective));
            const attempt = (action) => { try { action(); } catch { stopped.push("refused"); } };
            const add = (name, fields) => document.body.append(Object.assign(document.createElement(name), fields));
            attempt(() => { document.createElement("div").innerHTML = "<b>x</b>"; });
            attempt(() => window.trustedTypes.createPolicy("mine", {}));
            attempt(() => add("img", { src: "https://example.org/x.png" }));
            attempt(() => add("link", { rel: "stylesheet", href: "https://example.org/x.css" }));
            attempt(() => document.body.setAttribute("onclick", "1"));
            fetch("https://example.org/").catch(() => {});
            const [wanted] = arguments;
            // Events come when they come.
            const wait = (left) => left && !wanted.every((name) => stopped.includes(name))
              ? setTimeout(wait, 100, left - 1)
              : done({ stopped: [...new Set(stopped)], hacked: window.hacked ?? null });
            wait(100);
        """, wanted)
        self.assertTrue(set(wanted) <= set(tried["stopped"]), tried)
        self.browser.get_log("browser")

    def test_text_that_nests_too_deeply_is_text(self):
        result = self.render(">" * 20000)
        self.assertEqual((result["names"], len(result["text"])), (["p"], 20000))

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
            "dollars": "$a " * 20000,
            "lone dollars": "a $b\n\n" * 5000,
            "brackets of formulas": "\\(a \\[b " * 10000,
            "lines of formulas": "\\[ a\n\n" * 3000,
            "sub": "<sub>" * 1500 + "</b>",
        }
        for name, text in texts.items():
            start = time.monotonic()
            self.assertTrue(self.render(text)["text"], name)
            # On any machine.
            self.assertLess(time.monotonic() - start, 10, name)
        # Code is code, however many marks it has.
        code = "**_a " * 20000
        result = self.render(f"**b**\n```\n{code}\n```\n**c**")
        self.assertEqual(result["code"].strip(), code.strip())

    def test_what_grows_is_what_is_shown_at_once(self):
        text = "# A\n\nB *c\nd* e.\n\n- f\n- g\n\n  h\n\n- i\n\n```js\nlet j = `k`;\n\nl\n```\nm\n\n| n | o |\n|--|--|\n| p | q |\n\nr\n===\n\n1. s\n2. t\n\n$$u$$\n\n<b>v</b>\n\n> w\nx\n\n[y]\n\n[y]: https://example.org\n"
        same = self.module("markdown.js", """{
            const draw = (steps) => {
                const box = document.createElement("div");
                const view = new module.MarkdownView(box);
                for (const step of steps) view.show(step, false);
                view.show(given[0], true);
                return box;
            };
            const grown = draw([...given[0]].map((_, end) => given[0].slice(0, end + 1)));
            const whole = draw([]);
            // Code and formulas are set later.
            const isSet = (box) => box.querySelector(".hl-keyword") && box.querySelector(".katex");
            for (let left = 100; left && !(isSet(grown) && isSet(whole)); left -= 1) {
                await new Promise((done) => setTimeout(done, 100));
            }
            return [grown.outerHTML, whole.outerHTML];
        }""", text)
        self.assertEqual(same[0], same[1])

    def test_long_answers_take_time_in_proportion(self):
        parts = ["Some **words** of a `long` answer, and a [link](https://example.org).\n\n", "```rust\n" + "let x = 1; // code\n" * 20 + "```\n\n", "- one\n- two\n\n", "| a | b |\n|--|--|\n| 1 | 2 |\n\n"]
        measured = self.module("markdown.js", """{
            const times = [];
            for (const text of given[0]) {
                const box = document.createElement("div");
                document.getElementById("empty").append(box);
                const view = new module.MarkdownView(box);
                const start = performance.now();
                let longest = 0;
                for (let end = 40; end < text.length; end += 40) {
                    const before = performance.now();
                    view.show(text.slice(0, end), false);
                    longest = Math.max(longest, performance.now() - before);
                }
                view.show(text, true);
                times.push({ all: performance.now() - start, longest });
                box.remove();
            }
            return times;
        }""", [("".join(parts) * 200)[:size] for size in (25_000, 100_000)] + ["```\n" + "let x = 1; // code\n" * 5000])
        short, long, code = measured
        print(f"25 kB in steps of 40 characters: {short['all']:.0f} ms; 100 kB: {long['all']:.0f} ms, {long['longest']:.0f} ms at most for one; 95 kB of code: {code['all']:.0f} ms")
        # Four times as long takes four times the time; sixteen times would be what is read anew at each step.
        self.assertLess(long["all"], 9 * short["all"] + 500)
        self.assertLess(long["longest"], 1000)

    def test_a_long_answer_leaves_the_page_usable(self):
        self.stage.texts["long"] = "Some **words** of a `long` answer, in paragraphs.\n\n" * 2000
        self.begin("show long")
        self.until(lambda: len(self.answers()[0]) > 1000)
        start = time.monotonic()
        self.find("#input").send_keys("typed meanwhile")
        self.assertLess(time.monotonic() - start, 5)
        self.settle()
        self.assertEqual(self.find("#input").get_attribute("value"), "typed meanwhile")
        self.assertEqual(len(self.all(".assistant .text > p")), 2000)
        self.find("#input").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)


if __name__ == "__main__":
    unittest.main()
