// The form of a request: prompts, the settings that the model has, and what the server says against them.
import { $, make } from "../dom.js";
import { ServerError } from "../server.js";
import { BASIC, EDITING, MASKING, SECTIONS, VIDEO } from "./fields.js";
import { makeField } from "./field.js";
import { makePrompts } from "./prompts.js";
import { makeSeed } from "./seed.js";
import { makeSizes } from "./sizes.js";
import { makeUnits } from "./units.js";

export class Form {
  #context;
  #fields = [];
  // Sections by the field that refusals of them name.
  #sections = [];
  #prompts;
  #units = [];
  #pane = "text";

  constructor(context) {
    this.#context = context;
    const { request } = context;
    this.#prompts = makePrompts(context);
    $("writing").append(this.#prompts.node);
    request.subscribe((names) => this.#changed(names));
  }

  // Builds the settings that the model has.
  build() {
    const { backend, request } = this.#context;
    const { choices } = backend;
    this.#fields = [];
    this.#sections = [];
    const has = (row) => row.when?.(choices) ?? true;
    const field = (row) => {
      const made = makeField(row, choices, { get: () => request.get(row.name), set: (value) => request.set(row.name, value) });
      this.#fields.push(made);
      return made.node;
    };
    const rows = (list) => list.filter(has).map(field);
    for (const unit of this.#units) unit.close?.();
    this.#units = makeUnits(this.#context);
    const group = (className, title, list) =>
      list.length > 0 && make("fieldset", { class: `group ${className}` }, title && make("legend", {}, title), list);
    const sections = SECTIONS.filter(has).map((section) => this.#section(section, rows(section.rows)));
    const basic = rows(BASIC);
    $("settings").replaceChildren(
      ...[
        group("of-video", "Video", choices.video ? rows(VIDEO) : []),
        group("of-picture", "Picture", rows(EDITING)),
        group("of-mask", "Mask", rows(MASKING)),
        group("basic", "", [makeSizes(this.#context).node, ...basic, makeSeed(this.#context, (made) => this.#fields.push(made))]),
        ...this.#units.map(({ node }) => node),
        ...sections,
      ].filter(Boolean),
    );
    this.#prompts.build();
    this.showPane(this.#pane);
  }

  // Shows what belongs to a pane.
  showPane(pane) {
    this.#pane = pane;
    $("form").dataset.pane = pane;
  }

  #section({ title, param, rows, initial, of = "" }, nodes) {
    const { backend, request } = this.#context;
    const error = make("p", { class: "error", hidden: true, role: "alert" });
    const count = make("span", { class: "hint" });
    const names = [...new Set(rows.map(({ name }) => name.split(".")[0]))];
    const details = make("details", { class: `group ${of}` }, make("summary", {}, title, " ", count));
    const body = make("div", { class: "rows" }, nodes);
    let control = null;
    if (initial) {
      control = make("input", { type: "checkbox", id: `switch-${param}` });
      control.addEventListener("change", () => {
        request.update({ [param]: control.checked ? initial(backend.choices) : null });
      });
      details.append(make("div", { class: "field flag" }, control, make("label", { for: control.id }, `Use ${title.toLowerCase()}`)));
    }
    details.append(body, error);
    const show = () => {
      const set = names.filter((name) => request.fields[name] !== undefined).length;
      if (control) {
        control.checked = set > 0;
        body.hidden = set === 0;
        count.textContent = set > 0 ? "on" : "";
      } else count.textContent = set > 0 ? `${set} set` : "";
    };
    show();
    if (names.some((name) => request.fields[name] !== undefined)) details.open = true;
    this.#sections.push({ param, details, error, show });
    return details;
  }

  #changed(names) {
    for (const made of this.#fields) if (names.includes(made.row.name.split(".")[0])) made.show();
    for (const section of this.#sections) section.show();
    this.clear();
  }

  clear() {
    for (const made of this.#fields) made.clear();
    for (const section of this.#sections) section.error.hidden = true;
    for (const unit of this.#units) unit.error.hidden = true;
    $("refusal").hidden = true;
    $("refusal").replaceChildren();
  }

  // Throws where something is missing that only people can give.
  check() {
    for (const { param, check } of this.#units) {
      const message = check?.();
      if (message) throw new ServerError(message, { param });
    }
  }

  // Shows what the server refuses at the field that it names, and says what can be done where there is no such field.
  refuse({ message, param }) {
    const { request } = this.#context;
    const field = this.#fields.find(({ row, node }) => row.name === param && node.isConnected);
    const section = this.#sections.find((each) => each.param === param);
    const unit = this.#units.find((each) => each.param === param);
    if (this.#prompts.refuse(param, message)) return;
    if (field && isShown(field.node)) {
      field.node.closest("details")?.setAttribute("open", "");
      field.refuse(message);
      field.control.focus();
      field.node.scrollIntoView({ block: "nearest" });
    } else if (section || unit) {
      const { details, error } = section ?? unit;
      details.open = true;
      error.textContent = message;
      error.hidden = false;
      details.scrollIntoView({ block: "nearest" });
    } else {
      const leave = param && request.fields[param] !== undefined;
      $("refusal").replaceChildren(
        message,
        ...(leave
          ? [" ", make("button", { type: "button", class: "small", onclick: () => request.update({ [param]: null }) }, `Leave out ${param}`)]
          : []),
      );
      $("refusal").hidden = false;
    }
  }
}

// Folded sections count: they are opened. What belongs to another pane does not.
const isShown = (node) => node.closest("fieldset") === null || getComputedStyle(node.closest("fieldset")).display !== "none";
