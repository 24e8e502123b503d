// Formulas between $…$, $$…$$, \(…\) and \[…\], set by KaTeX.
import { make } from "./dom.js";

const LONGEST = 5000;
// KaTeX trusts nothing that it is given: no addresses, no HTML, no sizes beyond the line, no endless macros.
const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxSize: 10, maxExpand: 500 };

// Loaded when there is a formula to show.
let library;
const katex = () =>
  (library ??= (async () => {
    const sheet = new URL("../vendor/katex/katex.min.css", import.meta.url);
    document.head.append(make("link", { rel: "stylesheet", href: sheet.href }));
    await import("../vendor/katex/katex.min.js");
    return globalThis.katex;
  })());

// A formula: as it was written until KaTeX has set it, and for good if it cannot.
export const formula = (text, raw, displayMode) => {
  const node = make(displayMode ? "div" : "span", { class: displayMode ? "formula display" : "formula" }, raw);
  if (text.length <= LONGEST) {
    katex()
      .then((library) => {
        const set = make("span");
        library.render(text, set, { ...OPTIONS, displayMode });
        node.replaceChildren(...set.childNodes);
      })
      .catch(() => node.classList.add("unset"));
  }
  return node;
};

const PAIRS = [
  // A dollar beside a space or before a digit is money.
  { open: "$$", pattern: /^\$\$((?:[^$\\]|\\[^])+?)\$\$/, display: true },
  { open: "$", pattern: /^\$((?:[^$\\\n\s]|\\.)(?:(?:[^$\\\n]|\\.)*?(?:[^$\\\n\s]|\\.))?)\$(?![\d$])/, display: false },
  { open: "\\(", pattern: /^\\\(([^]+?)\\\)/, display: false },
  { open: "\\[", pattern: /^\\\[([^]+?)\\\]/, display: true },
];

const token = (type, source, pairs) => {
  for (const { open, pattern, display } of pairs) {
    const found = source.startsWith(open) && pattern.exec(source.slice(0, LONGEST));
    if (found) return { type, raw: found[0], text: found[1], display };
  }
  return undefined;
};

const BLOCK = /^ {0,3}(?:\$\$((?:[^$\\]|\\[^])+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n+|$)/;

// For marked.
export const MATHS = [
  {
    name: "mathsBlock",
    level: "block",
    start: (source) => /\n {0,3}(?:\$\$|\\\[)/.exec(source)?.index,
    tokenizer(source) {
      const found = /^ {0,3}(?:\$\$|\\\[)/.test(source) && BLOCK.exec(source.slice(0, LONGEST));
      return found ? { type: "mathsBlock", raw: found[0], text: found[1] ?? found[2], display: true } : undefined;
    },
  },
  {
    name: "maths",
    level: "inline",
    start: (source) => /\$|\\[([]/.exec(source)?.index,
    tokenizer: (source) => token("maths", source, PAIRS),
  },
];
