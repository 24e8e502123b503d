// Markdown as DOM nodes. Text from the model only ever becomes text nodes, never HTML.

const make = (name, ...children) => {
  const node = document.createElement(name);
  node.append(...children);
  return node;
};

// Inside of a line. The first alternative that matches wins; a backslash takes the next mark as it is.
const INLINE = /\\([\\`*_{}[\]()#+\-.!|<>~])|(`+)(.+?)\2(?!`)|\*\*(.+?)\*\*|~~(.+?)~~|\*([^\s*](?:.*?[^\s*])?)\*|(?<![\p{L}\p{N}_])_([^\s_](?:.*?[^\s_])?)_(?![\p{L}\p{N}_])|\[([^\]]+)\]\(\s*([^\s)]+)\s*\)|(https?:\/\/[^\s<>"')\]]+)/u;

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

const inline = (text) => {
  const nodes = [];
  while (text) {
    const found = INLINE.exec(text);
    if (!found) {
      nodes.push(text);
      break;
    }
    const [all, escaped, , code, strong, struck, star, line, label, address, bare] = found;
    if (found.index) nodes.push(text.slice(0, found.index));
    text = text.slice(found.index + all.length);
    if (escaped) nodes.push(escaped);
    else if (code !== undefined) nodes.push(make("code", code));
    else if (strong) nodes.push(make("strong", ...inline(strong)));
    else if (struck) nodes.push(make("del", ...inline(struck)));
    else if (star || line) nodes.push(make("em", ...inline(star || line)));
    else if (label) nodes.push(link(address, inline(label)) ?? all);
    else nodes.push(link(bare, [bare]) ?? all);
  }
  return nodes;
};

const lines = (text) => {
  const nodes = [];
  text.forEach((line, i) => {
    if (i) nodes.push(make("br"));
    nodes.push(...inline(line));
  });
  return nodes;
};

const codeBlock = (text) => {
  const button = make("button", "Copy");
  button.type = "button";
  button.addEventListener("click", () => navigator.clipboard?.writeText(text));
  return make("pre", make("code", text), button);
};

const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isRule = (row) => row !== undefined && row.includes("-") && /^\s*\|?(\s*:?-+:?\s*\|?)+\s*$/.test(row);

const table = (head, rows) => {
  const row = (name, text) => make("tr", ...cells(text).map((cell) => make(name, ...inline(cell))));
  return make("table", make("thead", row("th", head)), make("tbody", ...rows.map((text) => row("td", text))));
};

const FENCE = /^\s*(```+|~~~+)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const BREAK = /^\s*([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || BREAK.test(line) || ITEM.test(line) || line.startsWith(">");

// Quotes and lists nest; deeper than this is text.
const MAX_DEPTH = 8;

const blocks = (source, depth) => {
  const nodes = [];
  let i = 0;
  const takeWhile = (test) => {
    const start = i;
    while (i < source.length && test(source[i])) i += 1;
    return source.slice(start, i);
  };
  while (i < source.length) {
    const line = source[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (!line.trim()) {
      i += 1;
    } else if (fence) {
      i += 1;
      const text = takeWhile((next) => !next.trim().startsWith(fence[1]));
      i += 1;
      nodes.push(codeBlock(text.join("\n")));
    } else if (heading) {
      i += 1;
      nodes.push(make(`h${heading[1].length}`, ...inline(heading[2])));
    } else if (BREAK.test(line)) {
      i += 1;
      nodes.push(make("hr"));
    } else if (line.startsWith(">") && depth < MAX_DEPTH) {
      const inner = takeWhile((next) => next.startsWith(">")).map((next) => next.replace(/^>\s?/, ""));
      nodes.push(make("blockquote", ...blocks(inner, depth + 1)));
    } else if (item && depth < MAX_DEPTH) {
      nodes.push(list(item));
    } else if (line.includes("|") && isRule(source[i + 1])) {
      i += 2;
      nodes.push(table(line, takeWhile((next) => next.includes("|"))));
    } else {
      i += 1;
      const rest = takeWhile((next) => next.trim() && !startsBlock(next));
      nodes.push(make("p", ...lines([line, ...rest])));
    }
  }
  return nodes;

  // Items with the first one's kind of mark; what is indented more belongs to the item before.
  function list(first) {
    const ordered = /\d/.test(first[2]);
    const node = make(ordered ? "ol" : "ul");
    if (ordered) node.start = parseInt(first[2], 10);
    while (i < source.length) {
      const item = ITEM.exec(source[i]);
      if (!item || item[1].length > first[1].length + 1 || /\d/.test(item[2]) !== ordered) break;
      i += 1;
      const indent = item[1].length + 2;
      const inner = takeWhile((next) => !next.trim() || /^\s*/.exec(next)[0].length >= indent);
      const text = [item[3], ...inner.map((next) => next.slice(indent))];
      const children = blocks(text, depth + 1);
      // A single line needs no paragraph.
      const [only] = children;
      node.append(make("li", ...(children.length === 1 && only.localName === "p" ? only.childNodes : children)));
    }
    return node;
  }
};

export const markdown = (text) => blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
