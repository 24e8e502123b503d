// Buttons that open lists of what the server has for prompts: LoRAs, textual inversions, wildcards, styles.
import { make, present } from "../dom.js";

// `text` is what is put into the prompt; styles are chosen instead.
const KINDS = [
  { list: "loras", label: "LoRA", text: (name) => `<lora:${name}:1>` },
  { list: "embeddings", label: "Textual inversion", text: (name) => name },
  { list: "wildcards", label: "Wildcard", text: (name) => `__${name}__`, fields: { draw: "random" } },
];

export const makePickers = ({ request, backend }, insert) => {
  const node = make("div", { class: "row pickers" });
  const chosen = make("div", { class: "row chosen", role: "group", "aria-label": "Styles" });
  const styles = () => request.fields.styles ?? [];
  const toggle = (name) => {
    const now = styles();
    request.update({ styles: now.includes(name) ? now.filter((other) => other !== name) : [...now, name] });
  };
  const showStyles = () => {
    const chips = styles().map((name) =>
      make("button", { type: "button", class: "small chip", title: `Without the style ${name}`, onclick: () => toggle(name) }, name, " ×"),
    );
    chosen.replaceChildren(...chips);
    chosen.hidden = chips.length === 0;
  };
  request.subscribe((names) => {
    if (names.includes("styles")) showStyles();
  });
  showStyles();
  return {
    node: make("div", {}, node, chosen),
    build: () => {
      const { choices } = backend;
      const pickers = KINDS.filter(({ list }) => choices[list].length > 0).map(({ list, label, text, fields }) =>
        opener(label, choices[list].map((name) => ({ name })), (name) => {
          insert(text(name));
          if (fields && request.fields.draw === undefined) request.update(fields);
        }),
      );
      const style =
        choices.styles.length > 0 &&
        opener(
          "Style",
          choices.styles.map(({ name, prompt, negative_prompt: negative }) => ({ name, hint: [prompt, negative].filter(Boolean).join(" — ") })),
          toggle,
        );
      node.replaceChildren(...present([pickers, style]));
      node.hidden = node.childElementCount === 0;
    },
  };
};

// A button that opens a list with a search field.
const opener = (label, entries, pick) =>
  make("button", { type: "button", class: "small", "aria-haspopup": "dialog", onclick: () => openList(label, entries, pick) }, `+ ${label}`);

const openList = (label, entries, pick) => {
  const search = make("input", { type: "search", placeholder: "Search", "aria-label": `Search: ${label}` });
  const list = make("div", { class: "list" });
  // Browsers put the cursor of the field that gets the focus back to its beginning.
  const field = document.activeElement instanceof HTMLTextAreaElement ? document.activeElement : null;
  const cursor = field && [field.selectionStart, field.selectionEnd];
  const close = () => {
    dialog.close();
    dialog.remove();
    field?.setSelectionRange(...cursor);
  };
  const show = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = entries.filter(({ name }) => name.toLowerCase().includes(wanted));
    const buttons = found.map(({ name, hint }) =>
      make("button", { type: "button", class: "quiet wide", onclick: () => { close(); pick(name); } }, name, hint && make("span", { class: "hint" }, hint)),
    );
    list.replaceChildren(...(buttons.length > 0 ? buttons : [make("p", { class: "hint" }, "Nothing has this name.")]));
  };
  search.addEventListener("input", show);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    list.querySelector("button")?.click();
  });
  const head = make("div", { class: "row" }, make("strong", {}, label), make("button", { type: "button", class: "small quiet", onclick: close }, "Close"));
  const dialog = make("dialog", { class: "picker", "aria-label": label }, head, search, list);
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    close();
  });
  show();
  document.body.append(dialog);
  dialog.showModal();
  search.focus();
};
