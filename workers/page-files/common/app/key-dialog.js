// Asks for the server's key.
import { $, make } from "./dom.js";
import { key, setKey } from "./server.js";

// Opens the dialog, once; `done` is called with a new key in place.
export const askForKey = (reason, done) => {
  const dialog = $("key-dialog");
  if (dialog.open) return;
  const field = make("input", { type: "password", id: "key-field", autocomplete: "off", "aria-label": "API key" });
  field.value = key();
  const form = make(
    "form",
    { method: "dialog" },
    make("h1", { id: "key-title" }, "This server asks for a key"),
    make("p", { class: "hint" }, reason),
    field,
    make(
      "div",
      { class: "row end" },
      make("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Not now"),
      make("button", { type: "submit", class: "primary" }, "Use this key"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(field.value.trim());
    dialog.close();
    done();
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  field.focus();
};
