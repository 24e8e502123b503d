// A field in which a message is edited.
import { make } from "./dom.js";

export class Editor {
  // `label` is that of the button which saves; `actions`: save(text), cancel().
  constructor(text, label, actions) {
    this.area = make("textarea", { class: "edit", "aria-label": "Edit the message", rows: 3 });
    this.area.value = text;
    const save = () => actions.save(this.area.value);
    this.area.addEventListener("input", () => this.#grow());
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        actions.cancel();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.node = make(
      "div",
      { class: "editor" },
      this.area,
      make(
        "div",
        { class: "row" },
        make("button", { type: "button", class: "quiet", onclick: actions.cancel }, "Cancel"),
        make("button", { type: "button", class: "primary", title: "Ctrl+Enter", onclick: save }, label),
      ),
    );
  }

  focus() {
    this.#grow();
    this.area.focus();
    this.area.setSelectionRange(this.area.value.length, this.area.value.length);
  }

  #grow() {
    this.area.style.height = "auto";
    this.area.style.height = `${this.area.scrollHeight + 2}px`;
  }
}
