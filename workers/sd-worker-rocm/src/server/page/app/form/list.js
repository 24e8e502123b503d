// A part of the form that is a list of things of one kind, each with settings of its own: LoRAs, ControlNets, IP-Adapters.
import { make } from "../dom.js";
import { iconButton } from "../icons.js";
import { makeField } from "./field.js";

// `param` is the request's field, `title` what one is called and `heading` all of them, `fresh()` a new entry, `render(entry)` the parts of one, where entry has `get()` (its
// fields), `change(fields)` (null takes one out), `row(row)` (a field of its own) and `refresh()`.
export const makeList = ({ request, backend }, { param, title, heading = title, most, addLabel, fresh, render, hint }) => {
  const error = make("p", { class: "error", hidden: true, role: "alert" });
  const count = make("span", { class: "hint" });
  const list = make("div", { class: "entries" });
  const add = make("button", { type: "button", class: "small", onclick: () => append(fresh()) }, addLabel);
  const details = make(
    "details",
    { class: "group list", "data-list": param },
    make("summary", {}, heading, " ", count),
    hint && make("p", { class: "hint" }, hint),
    list,
    add,
    error,
  );
  const entries = () => request.fields[param] ?? [];
  // What this list has put there itself: another value comes from elsewhere and is shown anew.
  let own = null;
  const put = (next) => {
    own = next.length > 0 ? next : undefined;
    request.update({ [param]: next });
    tell();
  };
  const change = (index, fields) => {
    const merged = { ...entries()[index], ...fields };
    for (const [name, value] of Object.entries(merged)) if (value === null || value === undefined) delete merged[name];
    put(entries().map((entry, i) => (i === index ? merged : entry)));
  };
  const append = (entry) => {
    details.open = true;
    put([...entries(), entry]);
    show();
  };
  const remove = (index) => {
    put(entries().filter((_, i) => i !== index));
    show();
  };
  const tell = () => {
    const number = entries().length;
    count.textContent = number > 0 ? String(number) : "";
    add.disabled = number >= most;
  };
  const show = () => {
    tell();
    const nodes = entries().map((_, index) => {
      const entry = {
        get: () => entries()[index] ?? {},
        change: (fields) => change(index, fields),
        refresh: show,
        row: (row) =>
          makeField(row, backend.choices, { get: () => entry.get()[row.name], set: (value) => entry.change({ [row.name]: value }) }).node,
      };
      const head = make("div", { class: "row entry-head" }, make("strong", {}, `${title} ${index + 1}`), iconButton("trash", `Remove ${title} ${index + 1}`, () => remove(index)));
      return make("div", { class: "entry" }, head, render(entry));
    });
    list.replaceChildren(...nodes);
  };
  const close = request.subscribe((names) => {
    if (names.includes(param) && request.fields[param] !== own) show();
  });
  show();
  if (entries().length > 0) details.open = true;
  return { param, node: details, details, error, append, close, entries, change, refresh: show };
};

// A list whose entries need a picture each: one that is sent to `place` goes to the first entry without, and `check()` says which has none, by `named(number)`.
export const makePictureList = (context, { place, named, ...options }) => {
  const list = makeList(context, options);
  const firstWithout = () => list.entries().findIndex(({ image }) => !image);
  context.addPlace(place, (blob) => {
    const free = firstWithout();
    if (free < 0) list.append({ ...options.fresh(), image: blob });
    else list.change(free, { image: blob });
    context.openForm();
    list.refresh();
    list.details.open = true;
  });
  const check = () => {
    const without = firstWithout();
    return without < 0 ? null : `${named(without + 1)} has no picture: choose one, or remove it.`;
  };
  return { ...list, check };
};
