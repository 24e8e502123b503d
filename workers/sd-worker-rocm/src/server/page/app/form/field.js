// One setting of a request: a label, a control, a hint, and what the server says against it.
import { make } from "../dom.js";

const of = (value, choices) => (typeof value === "function" ? value(choices) : value);

let count = 0;

// Numbers of a list, or words; null for an empty one, undefined for what is none.
const numbers = (text) => {
  const list = text.split(/[\s,;x×]+/).filter(Boolean).map(Number);
  return list.every(Number.isFinite) ? list : undefined;
};
const words = (text) => text.split(/[\s,;]+/).filter(Boolean);

// What a control says, as the request has it; undefined is no value, null nothing.
const READ = {
  number: (text) => (text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : undefined),
  text: (text, row) => text || (row.isNeeded ? "" : null),
  choice: (text, row) => (text === "" ? null : row.isBoolean ? text === "true" : text),
  numbers,
  sizes: (text) => {
    const list = numbers(text);
    return list === undefined || ![0, 2].includes(list.length) ? undefined : list;
  },
  words,
};

// And back.
const WRITTEN = {
  numbers: (value) => value.join(", "),
  sizes: (value) => value.join(" x "),
  words: (value) => value.join(", "),
};

// Builds a row of `fields.js`. `get` and `set` reach its value; the form calls `show` after changes and `refuse` with
// the server's words.
export const makeField = (row, choices, { get, set }) => {
  const id = `field-${(count += 1)}`;
  const usual = of(row.usual, choices) ?? null;
  const hint = row.hint && make("p", { class: "hint", id: `${id}-hint` }, row.hint);
  const error = make("p", { class: "error", id: `${id}-error`, hidden: true });
  const described = [hint && hint.id, error.id].filter(Boolean).join(" ");
  const attributes = { id, name: row.name, "aria-describedby": described };
  const control = CONTROLS[row.kind](row, choices, attributes, usual);
  const slider = row.slider ? makeSlider(row, choices, control) : null;
  const clear = () => {
    error.hidden = true;
    control.removeAttribute("aria-invalid");
  };
  const refuse = (message) => {
    error.textContent = message;
    error.hidden = false;
    control.setAttribute("aria-invalid", "true");
  };
  const take = () => {
    clear();
    if (row.kind === "flag") return set(control.checked || null);
    const value = READ[row.kind](control.value.trim(), row);
    if (value === undefined) return refuse(row.kind === "sizes" ? "Two numbers: width and height." : "Numbers, with commas between.");
    return set(value);
  };
  control.addEventListener(row.kind === "number" ? "input" : "change", take);
  slider?.addEventListener("input", () => {
    control.value = slider.value;
    take();
  });
  const show = () => {
    const value = get() ?? null;
    if (row.kind === "flag") {
      control.checked = value === true;
      return;
    }
    const text = value === null ? "" : (WRITTEN[row.kind]?.(value) ?? String(value));
    // What is being typed is left alone.
    if (document.activeElement !== control || READ[row.kind](control.value.trim(), row) === undefined) control.value = text;
    if (slider) slider.value = String(value ?? usual ?? slider.min);
  };
  const label = make("label", { for: id }, row.label);
  const parts = row.kind === "flag" ? [control, label] : [label, make("span", { class: "control" }, control, slider)];
  const node = make("div", { class: `field ${row.kind}`, "data-field": row.name }, parts, hint, error);
  show();
  return { row, node, control, show, refuse, clear };
};

const input = (type) => (row, choices, attributes, usual) =>
  make("input", { type, ...attributes, placeholder: row.placeholder ?? (usual === null ? null : String(usual)) });

const CONTROLS = {
  number: (row, choices, attributes, usual) => {
    const node = input("number")(row, choices, attributes, usual);
    for (const name of ["min", "max"]) {
      const value = of(row[name], choices);
      if (value !== undefined) node.setAttribute(name, value);
    }
    // Steps are for the arrows; any number may be typed.
    node.setAttribute("step", "any");
    node.inputMode = "decimal";
    const step = of(row.step, choices) ?? 1;
    node.addEventListener("keydown", (event) => {
      if (!["ArrowUp", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      const from = node.value === "" ? (usual ?? Number(node.min || 0)) : Number(node.value);
      node.value = String(within(node, rounded(from + (event.key === "ArrowUp" ? step : -step))));
      node.dispatchEvent(new Event("input", { bubbles: true }));
    });
    return node;
  },
  text: input("text"),
  numbers: input("text"),
  sizes: input("text"),
  words: input("text"),
  flag: (row, choices, attributes) => make("input", { type: "checkbox", ...attributes }),
  choice: (row, choices, attributes, usual) => {
    const names = of(row.options, choices);
    const nothing = make("option", { value: "" }, usual === null ? "as it is" : `${usual} (usual)`);
    const others = names.map((name) => make("option", { value: name }, name));
    return make("select", attributes, nothing, others);
  },
};

// Without what binary fractions add.
const rounded = (value) => Number(value.toFixed(6));

const within = (node, value) => {
  const least = node.min === "" ? -Infinity : Number(node.min);
  const most = node.max === "" ? Infinity : Number(node.max);
  return Math.min(most, Math.max(least, value));
};

const makeSlider = (row, choices, control) => {
  const most = of(row.slider?.max, choices) ?? of(row.max, choices);
  const slider = make("input", {
    type: "range",
    min: of(row.min, choices) ?? 0,
    max: most,
    step: of(row.step, choices) ?? 1,
    // The number beside it says the same to those who hear the page.
    tabindex: -1,
    "aria-hidden": "true",
  });
  control.classList.add("short");
  return slider;
};
