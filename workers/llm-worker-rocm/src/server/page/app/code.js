// Blocks of code: their language, a button that copies them, and colours.
import { copyText, make } from "./dom.js";
import { icon } from "./icons.js";
import { notice } from "./notices.js";

// Longer code stays plain: colours would take too long.
const MOST_COLOURED = 40_000;

// Loaded when there is code to show.
let library;
const highlighter = () => (library ??= import("../vendor/highlight/highlight.min.js").then((module) => module.default));

// highlight.js's tree of a text: strings, and nodes with a scope. It becomes spans here, so no HTML is read.
const spans = (node) =>
  node.children.map((child) => {
    if (typeof child === "string") return child;
    const scope = (child.scope ?? "").replace(/[^\w.-]/g, "");
    return scope ? make("span", { class: `hl-${scope.split(".")[0]}` }, spans(child)) : spans(child);
  });

// Colours the code in a node, once the library is there.
const colour = async (node, text, language) => {
  if (!language || text.length > MOST_COLOURED) return;
  const hljs = await highlighter();
  if (!hljs.getLanguage(language) || node.textContent !== text) return;
  const { _emitter: tree } = hljs.highlight(text, { language, ignoreIllegals: true });
  node.replaceChildren(...spans(tree.rootNode).flat(Infinity));
};

const copyButton = (text) => {
  const button = make("button", { type: "button", class: "quiet small", "aria-label": "Copy this code" }, icon("copy"), "Copy");
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.replaceChildren(icon("check"), "Copied");
      setTimeout(() => button.replaceChildren(icon("copy"), "Copy"), 1500);
    } catch (error) {
      notice(error.message, { isError: true });
    }
  });
  return button;
};

const nameOf = (language) => (/^[\w+#.-]+/.exec(language ?? "")?.[0] ?? "").toLowerCase();

export class CodeBlock {
  #text;
  #language;
  #code;

  constructor(text, language) {
    this.#text = text;
    this.#language = nameOf(language);
    this.#code = make("code", {}, text);
    this.node = make(
      "div",
      { class: "code" },
      make("div", { class: "code-head" }, make("span", {}, this.#language || "text"), copyButton(() => this.#text)),
      // Wide code is scrolled, by the keyboard, too.
      make("pre", { tabindex: 0 }, this.#code),
    );
  }

  // More of the same block, while it is being written. Gives false if this is another block.
  extend(text, language) {
    if (!text.startsWith(this.#text) || nameOf(language) !== this.#language) return false;
    this.#code.append(text.slice(this.#text.length));
    this.#text = text;
    return true;
  }

  // The block is complete.
  finish() {
    this.#code.normalize();
    colour(this.#code, this.#text, this.#language).catch(() => {});
  }
}
