// Markdown as nodes of the document. marked reads it; its tokens become nodes here. Text from the model only ever
// becomes text nodes, never HTML; the server's policy forbids HTML from text altogether.
import { Marked } from "../vendor/marked/marked.js";
import { CodeBlock } from "./code.js";
import { isTooCostly } from "./cost.js";
import { make } from "./dom.js";
import { formula, MATHS } from "./maths.js";

const marked = new Marked({ gfm: true, breaks: true, extensions: MATHS });

const link = (address, children) => {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return make("a", { href: url.href, rel: "noopener noreferrer", target: "_blank" }, children);
};

const codeBlock = ({ text, lang }) => {
  const block = new CodeBlock(text, lang);
  block.finish();
  return block.node;
};

const ALIGNED = { left: "left", right: "right", center: "center" };

const table = ({ header, rows }) => {
  const cell = (name, { tokens, align }) => make(name, { class: ALIGNED[align] }, nodes(tokens));
  const row = (name, cells) => make("tr", {}, cells.map((each) => cell(name, each)));
  const body = rows.map((cells) => row("td", cells));
  return make("div", { class: "table", tabindex: 0 }, make("table", {}, make("thead", {}, row("th", header)), make("tbody", {}, body)));
};

const list = ({ ordered, start, items }) => {
  const item = ({ task, tokens }) => make("li", { class: task && "task" }, nodes(tokens));
  return make(ordered ? "ol" : "ul", { start: ordered && start !== 1 && start }, items.map(item));
};

// Characters by their names in HTML. This is the one text that is read as HTML: the policy lets nothing else pass.
const NAMED = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
const rules = { createHTML: (name) => (name.replace(NAMED, "") === "" ? name : "") };
const policy = window.trustedTypes?.createPolicy("characters", rules) ?? rules;
const character = (name) => new DOMParser().parseFromString(policy.createHTML(name), "text/html").body.textContent;

// A node, or several, for each type of token that may come of a model's text. What stands in none of these lines is
// shown as it was written.
const NODES = {
  // Blocks.
  space: () => [],
  def: () => [],
  hr: () => make("hr"),
  code: codeBlock,
  heading: ({ depth, tokens }) => make(`h${depth}`, {}, nodes(tokens)),
  paragraph: ({ tokens }) => make("p", {}, nodes(tokens)),
  html: ({ raw, block }) => (block ? make("p", {}, raw) : raw),
  blockquote: ({ tokens }) => make("blockquote", {}, nodes(tokens)),
  mathsBlock: ({ text, raw }) => formula(text, raw.trim(), true),
  list,
  table,
  // Inside of a line.
  br: () => make("br"),
  checkbox: ({ checked }) => make("input", { type: "checkbox", disabled: true, checked }),
  codespan: ({ text }) => make("code", {}, text),
  del: ({ tokens }) => make("del", {}, nodes(tokens)),
  em: ({ tokens }) => make("em", {}, nodes(tokens)),
  escape: ({ text }) => text,
  // Pictures would tell another server who reads this: a link waits until it is followed.
  image: ({ href, text, raw }) => link(href, [text || href]) ?? raw,
  link: ({ href, tokens, raw }) => link(href, nodes(tokens)) ?? raw,
  maths: ({ text, raw, display }) => formula(text, raw, display),
  strong: ({ tokens }) => make("strong", {}, nodes(tokens)),
  text: ({ tokens, text }) => (tokens ? nodes(tokens) : text.replace(NAMED, character)),
};

// The few tags that people write within lines, without attributes.
const TAG = /^<(\/?)(sub|sup|kbd|mark|u|s|b|i|small)>$/i;
const BREAK = /^<br *\/?>$/i;

const node = (token) => NODES[token.type]?.(token) ?? token.raw;

const nodes = (tokens = []) => {
  const found = [];
  const open = [];
  const add = (each) => (open.at(-1)?.children ?? found).push(each);
  const asText = ({ raw, children }) => [raw, ...children].forEach(add);
  for (const token of tokens) {
    const [, closes, name] = (token.type === "html" && TAG.exec(token.raw)) || [];
    if (name && !closes) open.push({ name: name.toLowerCase(), raw: token.raw, children: [] });
    else if (name && open.some((tag) => tag.name === name.toLowerCase())) {
      while (open.at(-1).name !== name.toLowerCase()) asText(open.pop());
      const { children } = open.pop();
      add(make(name.toLowerCase(), {}, children));
    } else add(token.type === "html" && BREAK.test(token.raw) ? make("br") : node(token));
  }
  while (open.length) asText(open.pop());
  return found;
};

const plain = (text) => [make("p", { class: "plain" }, text)];

// All of a text.
export const markdown = (text) => {
  if (isTooCostly(text)) return plain(text);
  try {
    return nodes(marked.lexer(text)).flat(Infinity);
  } catch {
    // Nested more deeply than the browser's stack: the text has to do.
    return plain(text);
  }
};

// Tokens at the end that a longer text may still change.
const UNSETTLED = 2;

// A text that grows. What can no longer change is read and shown once; only the end is shown anew.
export class MarkdownView {
  #box;
  #text = "";
  // Up to where the text is settled, and how many nodes that made.
  #settled = 0;
  #nodes = 0;
  // The block of code at the end, if that is what the end is.
  #code = null;
  #isComplete = false;

  constructor(box) {
    this.#box = box;
  }

  // Shows a text; `isComplete` says that it does not grow.
  show(given, isComplete) {
    const text = given.replace(/\r\n?/g, "\n");
    if (this.#isComplete && text === this.#text) return undefined;
    if (this.#isComplete || !text.startsWith(this.#text)) this.#reset();
    this.#text = text;
    if (isComplete && this.#settled && /^ {0,3}\[[^\]\n]+\]:/m.test(text)) this.#reset();
    const tail = text.slice(this.#settled);
    const tokens = this.#tokens(tail);
    if (!tokens) {
      this.#isComplete = isComplete;
      return this.#replaceEnd(plain(tail));
    }
    const last = tokens.at(-1);
    const isCode = !isComplete && tokens.length === 1 && last.type === "code";
    if (isCode && this.#code?.extend(last.text, last.lang)) return undefined;
    const settled = isComplete ? 0 : this.#settle(tokens);
    this.#isComplete = isComplete;
    const rest = tokens.slice(settled);
    const growing = isComplete ? null : rest.findLast(({ type }) => type !== "space");
    this.#code = growing?.type === "code" && rest.length === 1 ? new CodeBlock(growing.text, growing.lang) : null;
    return this.#replaceEnd(this.#code ? [this.#code.node] : this.#nodesOf(rest));
  }

  #reset() {
    this.#settled = 0;
    this.#nodes = 0;
    this.#code = null;
    this.#isComplete = false;
    this.#box.replaceChildren();
  }

  #tokens(text) {
    try {
      return isTooCostly(text) ? null : marked.lexer(text);
    } catch {
      return null;
    }
  }

  #nodesOf(tokens) {
    try {
      return nodes(tokens).flat(Infinity);
    } catch {
      return plain(tokens.map(({ raw }) => raw).join(""));
    }
  }

  #replaceEnd(nodes) {
    while (this.#box.childNodes.length > this.#nodes) this.#box.lastChild.remove();
    this.#box.append(...nodes);
  }

  // Shows the tokens that can no longer change for good; gives how many they are.
  #settle(tokens) {
    const blocks = [...tokens.keys()].filter((index) => tokens[index].type !== "space");
    // What stands before a fence is complete.
    const isFence = tokens[blocks.at(-1)]?.raw.startsWith("```") && tokens[blocks.at(-1)].type === "code";
    const end = blocks.at(isFence ? -1 : -UNSETTLED) ?? 0;
    if (end === 0) return 0;
    const settled = tokens.slice(0, end);
    const raw = settled.map((token) => token.raw).join("");
    if (!this.#text.startsWith(raw, this.#settled)) return 0;
    this.#replaceEnd(this.#nodesOf(settled));
    this.#nodes = this.#box.childNodes.length;
    this.#settled += raw.length;
    return end;
  }
}
