// The dialog with a chat's settings, the page's own, and what the server is.
import { $, make } from "./dom.js";
import { defaultText, FIELDS, GROUPS, valueOf } from "./fields.js";
import { icon, iconButton } from "./icons.js";
import { key, setKey } from "./server.js";
import { setTheme, theme, THEMES } from "./theme.js";

const THEME_NAMES = { system: "As the system", light: "Light", dark: "Dark" };

export class Settings {
  // Of the chat, by name; as texts, but for `lora`.
  #values = {};
  #tab = GROUPS[0].id;
  #refused = {};

  // `actions`: change(values), makeDefault(values), keyChanged(), exportAll(), importFile(file), removeAll(), and
  // about(): { defaults, adapters, facts }.
  constructor(actions) {
    this.actions = actions;
    $("settings-open").append(icon("settings"), "Settings");
    $("settings").addEventListener("click", (event) => {
      if (event.target === $("settings")) $("settings").close();
    });
  }

  // Opens the dialog; `refused` is `{ name, message }`: a field that the server did not take.
  open(values, refused = null) {
    this.#values = { ...values };
    this.#refused = refused ? { [refused.name]: refused.message } : {};
    const field = refused && FIELDS.find(({ name }) => name === refused.name);
    if (field) this.#tab = field.group;
    this.#render();
    if (!$("settings").open) $("settings").showModal();
    if (field) $(`field-${field.name}`)?.focus();
  }

  #tabs() {
    const tabs = GROUPS.map(({ id, label }) => [id, label]);
    if (this.actions.about().adapters.length) tabs.push(["adapters", "Adapters"]);
    return [...tabs, ["page", "Page"]];
  }

  #render() {
    const tabs = this.#tabs();
    if (!tabs.some(([id]) => id === this.#tab)) this.#tab = tabs[0][0];
    const buttons = tabs.map(([id, label]) => make("button", {
      type: "button",
      role: "tab",
      id: `tab-${id}`,
      "aria-selected": String(id === this.#tab),
      "aria-controls": "panel",
      tabindex: id === this.#tab ? 0 : -1,
      onclick: () => this.#choose(id),
    }, label));
    const list = make("div", { role: "tablist", class: "tabs", "aria-label": "Groups of settings" }, buttons);
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const at = tabs.findIndex(([id]) => id === this.#tab);
      this.#choose(tabs.at((at + step) % tabs.length)[0]);
    });
    const panel = make("div", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${this.#tab}`, tabindex: -1 }, this.#panel());
    const close = () => $("settings").close();
    $("settings").replaceChildren(
      make("div", { class: "dialog-head" }, make("h1", { id: "settings-title" }, "Settings"), iconButton("close", "Close", close)),
      list,
      panel,
      make(
        "div",
        { class: "dialog-foot" },
        make("button", { type: "button", class: "quiet", onclick: () => this.#reset() }, "Reset"),
        make("button", { type: "button", class: "quiet", onclick: () => this.actions.makeDefault(this.#values) }, "Use for new chats"),
        make("button", { type: "button", class: "primary", onclick: close }, "Done"),
      ),
    );
  }

  #choose(id) {
    this.#tab = id;
    this.#render();
    $(`tab-${id}`).focus();
  }

  #reset() {
    this.#values = {};
    this.#refused = {};
    this.actions.change(this.#values);
    this.#render();
  }

  #panel() {
    if (this.#tab === "page") return this.#page();
    if (this.#tab === "adapters") return this.#adapters();
    return GROUPS.find(({ id }) => id === this.#tab).fields.map((field) => this.#field(field));
  }

  #set(name, value) {
    if (value === "" || value === null) delete this.#values[name];
    else this.#values[name] = value;
    this.actions.change({ ...this.#values });
  }

  #field(field) {
    const id = `field-${field.name}`;
    const error = make("span", { class: "field-error", id: `${id}-error` });
    const input = this.#input(field, id);
    const check = () => {
      let reason = this.#refused[field.name] ?? "";
      try {
        valueOf(field, input.value);
      } catch (problem) {
        reason = problem.message;
      }
      if (input.validity && !input.validity.valid && !reason) reason = input.validationMessage;
      error.textContent = reason;
      input.setAttribute("aria-invalid", String(reason !== ""));
    };
    input.addEventListener("change", () => {
      delete this.#refused[field.name];
      this.#set(field.name, input.value);
      check();
    });
    check();
    const isWide = ["text", "json", "list"].includes(field.kind);
    return make(
      "div",
      { class: isWide ? "field wide-field" : "field" },
      make("label", { for: id }, field.label),
      input,
      make("span", { class: "hint", id: `${id}-hint` }, field.hint),
      error,
    );
  }

  #input(field, id) {
    const value = this.#values[field.name] ?? "";
    const common = { id, "aria-describedby": `${id}-hint ${id}-error` };
    if (field.kind === "choice") {
      const select = make("select", common, field.options.map(([option, label]) => make("option", { value: option }, label)));
      select.value = value;
      return select;
    }
    const placeholder = field.isOwn ? "" : defaultText(field, this.actions.about().defaults);
    if (["text", "json", "list"].includes(field.kind)) {
      const isCode = field.kind === "json" || field.isCode;
      const area = make("textarea", { ...common, rows: field.rows, class: isCode && "code-field", spellcheck: isCode && "false", placeholder });
      area.value = value;
      return area;
    }
    const { min, max, step } = field;
    const input = make("input", { ...common, type: "number", min, max, step: field.kind === "integer" ? step : "any", placeholder, inputmode: "decimal" });
    input.value = value;
    return input;
  }

  #adapters() {
    const { adapters } = this.actions.about();
    const own = Array.isArray(this.#values.lora) ? this.#values.lora : null;
    const scaleOf = (id) => own?.find((each) => each.id === id)?.scale ?? 0;
    const rows = adapters.map(({ id, name, scale }) => {
      const input = make("input", { type: "number", step: "any", id: `lora-${id}`, disabled: !own });
      input.value = own ? scaleOf(id) : scale;
      input.addEventListener("change", () => {
        const others = this.#values.lora.filter((each) => each.id !== id);
        const value = Number(input.value) || 0;
        this.#set("lora", value === 0 ? others : [...others, { id, scale: value }]);
      });
      return make("div", { class: "field" }, make("label", { for: `lora-${id}` }, name), input);
    });
    const toggle = make("input", { type: "checkbox", id: "lora-own" });
    toggle.checked = own !== null;
    toggle.addEventListener("change", () => {
      const list = adapters.filter(({ scale }) => scale).map(({ id, scale }) => ({ id, scale }));
      this.#set("lora", toggle.checked ? list : null);
      this.#choose("adapters");
    });
    return [make("label", { class: "check" }, toggle, "Choose adapters for this chat (0 leaves one out)"), ...rows];
  }

  #page() {
    const { facts } = this.actions.about();
    const themes = make("select", { id: "theme" }, THEMES.map((name) => make("option", { value: name }, THEME_NAMES[name])));
    themes.value = theme();
    themes.addEventListener("change", () => setTheme(themes.value));
    const field = make("input", { type: "password", id: "key", autocomplete: "off" });
    field.value = key();
    field.addEventListener("change", () => {
      setKey(field.value.trim());
      this.actions.keyChanged();
    });
    const file = make("input", { type: "file", accept: "application/json,.json", hidden: true, id: "import-file" });
    file.addEventListener("change", () => {
      if (file.files[0]) this.actions.importFile(file.files[0]);
      file.value = "";
    });
    const button = (name, label, run) => make("button", { type: "button", class: "quiet", onclick: run }, icon(name), label);
    return [
      make("div", { class: "field" }, make("label", { for: "theme" }, "Colours"), themes),
      make(
        "div",
        { class: "field" },
        make("label", { for: "key" }, "API key"),
        field,
        make("span", { class: "hint" }, "If the server asks for one; kept until this tab is closed."),
      ),
      make(
        "div",
        { class: "field wide-field" },
        make("span", { class: "label" }, "Chats"),
        make(
          "div",
          { class: "row" },
          button("download", "Export all", () => this.actions.exportAll()),
          button("upload", "Import", () => file.click()),
          button("trash", "Delete all", () => this.actions.removeAll()),
          file,
        ),
      ),
      make("dl", { class: "facts" }, facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ];
  }
}
