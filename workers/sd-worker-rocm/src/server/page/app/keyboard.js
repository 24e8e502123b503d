// The keys of the page, and the list of them.
import { make } from "./dom.js";
import { keptOf } from "./kept.js";
import { notice } from "./notices.js";

const KEYS = [
  ["Ctrl+Enter", "generates, also while you write"],
  ["Esc", "leaves a field, closes what is open, or else cancels your oldest job"],
  ["1 … 9", "opens a pane, in the order of the tabs"],
  ["G  Q  H  X", "gallery, queue, history, grid"],
  ["/", "to the search of the pane"],
  ["Ctrl+↑  Ctrl+↓", "in a prompt: more or less weight to what is selected"],
  ["← ↑ → ↓", "in the gallery: from picture to picture; large: the one before and the next"],
  ["+  −  0", "a large picture: larger, smaller, whole"],
  ["F  Del", "a large picture: favourite, delete"],
  ["?", "this list"],
];

const PANES = { g: "gallery", q: "queue", h: "history", x: "grid" };

// Whether keys are this element's own: what is typed into it is text.
const isTyped = (element) =>
  element.closest(
    "textarea, select, [contenteditable], input:not([type=checkbox], [type=radio], [type=button], [type=range])",
  );

export const mount = (document, context) => {
  const help = make(
    "dialog",
    { class: "help", "aria-label": "Keys" },
    make("h2", {}, "Keys"),
    make(
      "dl",
      {},
      KEYS.map(([keys, does]) => [make("dt", {}, make("kbd", {}, keys)), make("dd", {}, does)]),
    ),
    make("form", { method: "dialog" }, make("button", { class: "small" }, "Close")),
  );
  document.body.append(help);
  const failed = (error) => notice(error.message, { isError: true });

  const cancel = async () => {
    const { jobs } = await keptOf(context);
    const [oldest] = jobs.active;
    if (!oldest) return;
    await jobs.cancel(oldest.id);
    notice("Your oldest job is cancelled.");
  };

  const search = () =>
    [...document.querySelectorAll("input[type=search]")].find((input) => input.offsetParent !== null);

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const isOpen = Boolean(document.querySelector("dialog[open]"));
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!isOpen && !event.repeat) context.generate().catch(failed);
      return;
    }
    // A dialog closes itself, and has its own keys.
    if (isOpen || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (isTyped(event.target)) event.target.blur();
      else cancel().catch(failed);
      return;
    }
    if (isTyped(event.target)) return;
    const tabs = [...document.querySelectorAll("[role=tab]")].filter((tab) => !tab.hidden);
    if (event.key === "?") help.showModal();
    else if (PANES[event.key.toLowerCase()]) context.open(PANES[event.key.toLowerCase()]);
    else if (/^[1-9]$/.test(event.key)) tabs[event.key - 1]?.click();
    else if (event.key === "/" && search()) search().focus();
    else return;
    event.preventDefault();
  });
  return { help: () => help.showModal() };
};
