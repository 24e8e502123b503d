// Prompt and negative prompt, with weights by keys and pickers for what the server has.
import { debounced, make } from "../dom.js";
import { makePickers } from "./pickers.js";
import { weighted } from "./weights.js";

const area = (id, label, rows) => {
  const error = make("p", { class: "error", id: `${id}-error`, hidden: true });
  const count = make("span", { class: "hint count", title: "Tokens, and how many the chunks that are read have" });
  const node = make("textarea", { id, rows, spellcheck: "true", "aria-describedby": error.id });
  const head = make("span", { class: "prompt-head" }, make("label", { for: id }, label), count);
  const wrap = make("div", { class: "field text wide" }, head, node, error);
  return { node, error, count, wrap };
};

export const makePrompts = (context) => {
  const { backend, request } = context;
  const parts = {
    prompt: area("prompt", "Prompt", 4),
    negative_prompt: area("negative", "Negative prompt", 2),
  };
  let last = parts.prompt.node;
  for (const [name, { node }] of Object.entries(parts)) {
    node.addEventListener("input", () => request.update({ [name]: node.value }));
    node.addEventListener("focus", () => {
      last = node;
    });
    node.addEventListener("keydown", (event) => {
      const isWeight = (event.ctrlKey || event.metaKey) && ["ArrowUp", "ArrowDown"].includes(event.key);
      if (!isWeight || event.altKey || event.shiftKey) return;
      event.preventDefault();
      const changed = weighted(node.value, node.selectionStart, node.selectionEnd, event.key === "ArrowUp" ? 1 : -1);
      if (changed) replace(node, changed.from, changed.to, changed.text, changed.selection);
    });
  }
  const show = () => {
    for (const [name, { node }] of Object.entries(parts)) {
      const value = request.fields[name] ?? "";
      if (node.value !== value) node.value = value;
    }
  };
  // Tokens, where the server tells: of what has been typed a moment ago.
  let asked = 0;
  const countTokens = async () => {
    asked += 1;
    const mine = asked;
    const all = Object.values(parts);
    const texts = all.map(({ node }) => node.value);
    let counts = null;
    if (backend.choices?.takes.token_count) counts = await backend.post("v1/tokens", { prompts: texts, model: request.fields.model }).catch(() => null);
    if (mine !== asked) return;
    all.forEach(({ count }, i) => {
      const tokens = texts[i] === "" ? null : (counts?.tokens?.[i] ?? null);
      const most = tokens === null ? 0 : Math.max(1, Math.ceil(tokens / counts.chunk)) * counts.chunk;
      count.textContent = tokens === null ? "" : `${tokens} / ${most}`;
    });
  };
  const countSoon = debounced(300, countTokens);
  const clear = () => {
    for (const { node, error } of Object.values(parts)) {
      error.hidden = true;
      node.removeAttribute("aria-invalid");
    }
  };
  request.subscribe((names) => {
    if (names.includes("prompt") || names.includes("negative_prompt")) {
      show();
      countSoon();
    }
    clear();
  });
  show();
  const pickers = makePickers(context, (text) => insert(last, text));
  return {
    node: make("div", { class: "prompts" }, parts.prompt.wrap, pickers.node, parts.negative_prompt.wrap),
    build: () => {
      pickers.build();
      countTokens();
    },
    // Whether the field is one of these.
    refuse: (param, message) => {
      const part = parts[param];
      if (!part) return false;
      part.error.textContent = message;
      part.error.hidden = false;
      part.node.setAttribute("aria-invalid", "true");
      part.node.focus();
      return true;
    },
  };
};

// Replaces a part of a text so that the browser can undo it.
const replace = (node, from, to, text, [start, end]) => {
  node.focus();
  node.setSelectionRange(from, to);
  if (!document.execCommand("insertText", false, text)) {
    node.setRangeText(text);
    node.dispatchEvent(new Event("input", { bubbles: true }));
  }
  node.setSelectionRange(start, end);
};

// Inserts a text where the cursor is, apart from the words around it.
const insert = (node, text) => {
  const { value, selectionEnd: at } = node;
  const before = at > 0 && !/[\s(,[{|]/.test(value[at - 1]) ? " " : "";
  const after = at < value.length && !/[\s),\]}|:]/.test(value[at]) ? " " : "";
  const end = at + before.length + text.length;
  replace(node, at, at, before + text + after, [end, end]);
};
