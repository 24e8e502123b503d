// Small helpers around the document. Attributes never come from a model's text.

export const $ = (id) => document.getElementById(id);

// An element: attributes, `on…` as listeners, and children (nodes or text; what is null or false is left out).
export const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
};

// Children without those that are not there.
export const present = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

const labelOf = (node) => node.getAttribute("aria-label") ?? node.textContent.trim();

// Replaces what is in a box. Equal content stays as it is; else what has the focus in it (in a row with a `data-id`, if
// there are rows) hands it to what has its label now, or its place.
export const renew = (box, nodes) => {
  const old = [...box.childNodes];
  if (old.length === nodes.length && nodes.every((node, index) => node.isEqualNode(old[index]))) return;
  const focused = box.contains(document.activeElement) ? document.activeElement : null;
  const id = focused?.closest("[data-id]")?.dataset.id;
  const choices = () => {
    const row = [...box.querySelectorAll("[data-id]")].find((each) => each.dataset.id === id) ?? box;
    return [...row.querySelectorAll("a, button, input, select, summary, textarea")];
  };
  const place = focused && choices().indexOf(focused);
  const label = focused && labelOf(focused);
  box.replaceChildren(...nodes);
  if (!focused) return;
  const now = choices();
  (now.find((node) => labelOf(node) === label) ?? now[place])?.focus({ preventScroll: true });
};

// A name that no other record has.
export const newId = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
};

// Copies text, also where the clipboard is closed to pages without TLS.
export const copyText = async (text) => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { class: "hidden-visually", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser does not let this page copy.");
};

// Saves a text as a file.
export const saveFile = (name, type, text) => {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
};

// 1234567 as 1,234,567.
export const count = (number) => Math.round(number).toLocaleString("en");

// Waits until nothing has called for `milliseconds`.
export const debounced = (milliseconds, action) => {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
};
