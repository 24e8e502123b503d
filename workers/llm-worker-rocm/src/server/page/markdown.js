// Markdown as DOM nodes. marked reads it; its tokens become nodes here. Text from the model only ever becomes text nodes, never HTML.
import { lexer } from "./marked.js";

const OPTIONS = { gfm: true, breaks: true };

const make = (name, ...children) => {
  const node = document.createElement(name);
  node.append(...children);
  return node;
};

const link = (address, children) => {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const node = make("a", ...children);
  node.href = url.href;
  node.rel = "noopener noreferrer";
  node.target = "_blank";
  return node;
};

const codeBlock = (text) => {
  const button = make("button", "Copy");
  button.type = "button";
  button.addEventListener("click", () => navigator.clipboard?.writeText(text));
  return make("pre", make("code", text), button);
};

const cell = (name, { tokens, align }) => {
  const node = make(name, ...nodes(tokens));
  if (align) node.style.textAlign = align;
  return node;
};

const table = ({ header, rows }) => {
  const row = (name, cells) => make("tr", ...cells.map((each) => cell(name, each)));
  return make("table", make("thead", row("th", header)), make("tbody", ...rows.map((cells) => row("td", cells))));
};

const list = ({ ordered, start, items }) => {
  const node = make(ordered ? "ol" : "ul", ...items.map(({ tokens }) => make("li", ...nodes(tokens))));
  if (ordered) node.start = start;
  return node;
};

// Characters by their names in HTML. Nothing else of the text is read as HTML.
const NAMED = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
const character = (name) => new DOMParser().parseFromString(name, "text/html").body.textContent;

// A node, or several, for each type of token that may come of a model's text. What stands in none of these lines is shown as it was written.
const NODES = {
  // Blocks.
  space: () => [],
  def: () => [],
  hr: () => make("hr"),
  code: ({ text }) => codeBlock(text),
  heading: ({ depth, tokens }) => make(`h${depth}`, ...nodes(tokens)),
  paragraph: ({ tokens }) => make("p", ...nodes(tokens)),
  html: ({ raw, block }) => (block ? make("p", raw) : raw),
  blockquote: ({ tokens }) => make("blockquote", ...nodes(tokens)),
  list,
  table,
  // Inside of a line.
  br: () => make("br"),
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  codespan: ({ text }) => make("code", text),
  del: ({ tokens }) => make("del", ...nodes(tokens)),
  em: ({ tokens }) => make("em", ...nodes(tokens)),
  escape: ({ text }) => text,
  // Pictures would tell another server who reads this: a link waits until it is followed.
  image: ({ href, text, raw }) => link(href, [text || href]) ?? raw,
  link: ({ href, tokens, raw }) => link(href, nodes(tokens)) ?? raw,
  strong: ({ tokens }) => make("strong", ...nodes(tokens)),
  text: ({ tokens, text }) => (tokens ? nodes(tokens) : text.replace(NAMED, character)),
};

// marked looks for the end of each mark among all others of its block: a second for some thousand of them, a minute for ten times as many. Each line here is
// looked at once. Code, where a mark means nothing, counts for nothing. Likewise marked looks for an address from each character of a word on, and for the
// end of a line from each space on.
const MOST_MARKS = 2000;
const LONGEST_WORD = 2000;
const MOST_SPACES = 1000;
const isLong = (line) => {
  let spaces = 0;
  return line.split(/\s/).some((word) => {
    spaces = word ? 0 : spaces + 1;
    return word.length > LONGEST_WORD || spaces > MOST_SPACES;
  });
};
const isTooCostly = (text) => {
  let marks = 0;
  let fence = "";
  for (const line of text.split("\n")) {
    const [, opening, rest] = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    if (fence) {
      if (opening?.startsWith(fence) && !rest.trim()) fence = "";
      continue;
    }
    if (opening && !(opening[0] === "`" && rest.includes("`"))) {
      fence = opening;
      continue;
    }
    if (!line.trim() || /^ {0,3}(?:#{1,6}|[-*+]) /.test(line)) marks = 0;
    marks += line.match(/[*_~`<[\]]/g)?.length ?? 0;
    if (marks > MOST_MARKS || isLong(line)) return true;
  }
  return false;
};

const nodes = (tokens) => tokens.flatMap((token) => NODES[token.type]?.(token) ?? token.raw);

export const markdown = (text) => {
  if (isTooCostly(text)) return [make("p", text)];
  try {
    return nodes(lexer(text, OPTIONS));
  } catch {
    // Nested more deeply than the browser's stack: the text has to do.
    return [make("p", text)];
  }
};
