// The pane of grids: what is varied, how many pictures that makes, and the grids that were begun.
import { make } from "../dom.js";
import { saveAs } from "../gallery/save.js";
import { Viewer } from "../gallery/viewer.js";
import { keptOf } from "../kept.js";
import { notice } from "../notices.js";
import { local } from "../small-store.js";
import { axes } from "./axes.js";
import { draw } from "./draw.js";
import { Grids, MOST_CELLS, readAxes } from "./grids.js";

const AXES = ["X", "Y", "Z"];
const WHERE = ["from left to right", "from top to bottom", "one table each"];
const TYPED = "grid";

const STATES = { done: "finished", cancelled: "cancelled", running: "runs" };

export const mount = async (element, context) => {
  const kept = await keptOf(context);
  const { collection } = kept;
  const { request, backend } = context;
  const grids = new Grids(context, kept);
  const views = new Map();
  const failed = (error) => notice(error.message, { isError: true });
  const button = (label, run, attributes = {}) =>
    make(
      "button",
      { type: "button", class: "small", onclick: () => Promise.resolve(run()).catch(failed), ...attributes },
      label,
    );

  // The form --------------------------------------------------------------------------------------

  const typed = local.json(TYPED, []);
  const rows = AXES.map((name, at) => {
    const error = make("p", { class: "error", id: `axis-${name}-error` });
    const field = make("select", { id: `axis-${name}`, "aria-label": `Axis ${name}`, onchange: () => changed() });
    const values = make("input", {
      id: `axis-${name}-values`,
      "aria-label": `Values of axis ${name}`,
      "aria-describedby": error.id,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => changed(),
    });
    const fill = button(
      "All",
      () => {
        values.value = axisOf(field.value)
          .choices.map((choice) => (/[",]/.test(choice) ? `"${choice.replaceAll('"', '""')}"` : choice))
          .join(", ");
        changed();
      },
      { class: "small quiet", title: "All that there are" },
    );
    values.value = typed[at]?.text ?? "";
    const node = make(
      "fieldset",
      { class: "axis" },
      make("legend", {}, `${name}: ${WHERE[at]}`),
      field,
      values,
      fill,
      error,
    );
    return { node, field, values, fill, error, wanted: typed[at]?.id ?? "" };
  });
  const summary = make("p", { id: "grid-summary", role: "status" });
  const start = button("Make the grid", () => begin(), { class: "primary", id: "grid-start" });
  const list = make("div", { class: "grids" });
  element.replaceChildren(
    make(
      "p",
      { class: "hint" },
      "The request of the pane that was open last, in all combinations of these values. Ranges are written 1-5, 10-30 (+5), 1-3 [5].",
    ),
    ...rows.map(({ node }) => node),
    make("div", { class: "row" }, start, summary),
    list,
  );

  let known = [];
  const axisOf = (id) => known.find((axis) => axis.id === id);

  const showAxes = () => {
    known = axes({ choices: backend.choices, models: backend.models, fields: request.fields });
    for (const row of rows) {
      const wanted = row.field.options.length ? row.field.value : row.wanted;
      row.field.replaceChildren(
        make("option", { value: "" }, "nothing"),
        ...known.map(({ id, label }) => make("option", { value: id }, label)),
      );
      row.field.value = axisOf(wanted) ? wanted : "";
    }
    changed();
  };

  const read = () => {
    for (const { error } of rows) error.textContent = "";
    let isWrong = false;
    const chosen = readAxes(
      rows.map(({ field, values }) => ({ id: field.value, text: values.value })),
      known,
      (row, message) => {
        rows[row].error.textContent = message;
        isWrong = true;
      },
    );
    return isWrong ? null : chosen;
  };

  const changed = () => {
    for (const { field, values, fill } of rows) {
      const axis = axisOf(field.value);
      values.disabled = !axis;
      values.placeholder = axis?.hint ?? "";
      fill.hidden = !axis?.choices?.length;
    }
    local.set(TYPED, JSON.stringify(rows.map(({ field, values }) => ({ id: field.value, text: values.value }))));
    const chosen = read();
    const cells = chosen?.reduce((product, { values }) => product * values.length, 1) ?? 0;
    const isTooMany = cells > MOST_CELLS;
    start.disabled = !chosen?.length || isTooMany;
    summary.classList.toggle("error", isTooMany);
    summary.textContent = !chosen
      ? ""
      : !chosen.length
        ? "Choose what is varied."
        : `${chosen.length > 1 ? `${chosen.map(({ values }) => values.length).join(" × ")} = ` : ""}${cells} ${cells === 1 ? "picture" : "pictures"}${isTooMany ? `; ${MOST_CELLS} are the most` : steps(chosen, cells)}`;
  };

  // Steps of all cells together: what the time depends on.
  const steps = (chosen, cells) => {
    const axis = chosen.find((each) => each.axis.id === "steps");
    const each = request.fields.steps ?? backend.choices?.defaults?.steps;
    const all = axis ? (axis.values.reduce((sum, value) => sum + value, 0) * cells) / axis.values.length : each * cells;
    return Number.isFinite(all) ? `, ${all} steps in all` : "";
  };

  const begin = async () => {
    const chosen = read();
    if (!chosen?.length) return;
    start.disabled = true;
    try {
      const body = await request.build();
      await grids.start(body, chosen);
      await kept.past.add(body);
    } finally {
      changed();
    }
  };

  // The grids -------------------------------------------------------------------------------------

  const viewer = new Viewer({
    collection,
    context,
    remove: async (ids) => {
      if (!confirm("Delete this picture from the gallery?")) return false;
      await collection.remove(ids);
      return true;
    },
    download: async ({ id }) => saveAs(`${id}.png`, (await collection.files(id)).file),
  });

  const pictureOf = ({ job }) => `${job}-0`;

  const bitmapOf = async (cell) => {
    if (cell.state !== "completed") return cell.error ?? "not made";
    try {
      return await createImageBitmap((await collection.files(pictureOf(cell))).file);
    } catch (error) {
      return error.message;
    }
  };

  const save = async (grid) => {
    const { canvas, scale } = draw(grid, await Promise.all(grid.cells.map(bitmapOf)));
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    if (!blob) throw new Error("The browser cannot draw a picture of this size.");
    if (scale < 1)
      notice(
        `The pictures were made ${Math.round(100 * scale)} % as large, so that a browser can draw all of them as one.`,
      );
    saveAs(`${grid.id}.png`, blob);
    return blob;
  };

  const cellNode = (grid, cell) => {
    const image = make("img", { alt: "", hidden: true });
    const text = make("span");
    const names = grid.axes.map(({ names: all }, number) => all[cell.at[number]]).join(", ");
    const node = make(
      "button",
      {
        type: "button",
        class: "cell",
        "aria-label": names,
        title: names,
        onclick: () =>
          viewer.open(grid.cells.filter((each) => each.state === "completed").map(pictureOf), pictureOf(cell)),
      },
      image,
      text,
    );
    return { node, image, text, url: null };
  };

  const tableNode = (grid, z, cells) => {
    const [columns, rows = { names: [null] }] = grid.axes;
    const head = make(
      "tr",
      {},
      grid.axes[1] ? make("td") : null,
      columns.names.map((name) => make("th", { scope: "col" }, name)),
    );
    const body = rows.names.map((name, y) =>
      make(
        "tr",
        {},
        name === null ? null : make("th", { scope: "row" }, name),
        columns.names.map((_, x) => make("td", {}, cells[x + columns.names.length * (y + rows.names.length * z)].node)),
      ),
    );
    return make("table", {}, grid.axes[2] ? make("caption", {}, grid.axes[2].names[z]) : null, head, body);
  };

  const create = (grid) => {
    const cells = grid.cells.map((cell) => cellNode(grid, cell));
    const view = {
      cells,
      state: make("span", { class: "hint", role: "status" }),
      bar: make("progress", { max: grid.cells.length, "aria-label": "Cells that are made" }),
      cancel: button("Cancel", () => grids.cancel(grid)),
      save: button("Save as one picture", () => save(grid)),
      remove: button(
        "Delete",
        () => (confirm("Delete this grid? Its pictures stay in the gallery.") ? grids.remove(grid) : null),
        { class: "small quiet" },
      ),
    };
    const tables = (grid.axes[2]?.names ?? [null]).map((_, z) => tableNode(grid, z, cells));
    view.node = make(
      "section",
      { class: "grid", "data-id": grid.id },
      make("h3", {}, grid.title || "(no prompt)"),
      make("div", { class: "row" }, view.state, view.bar, view.cancel, view.save, view.remove),
      make("div", { class: "tables" }, tables),
    );
    views.set(grid.id, view);
    return view;
  };

  // A picture is copied into the gallery soon after it was made, and may be taken out of it later.
  const missing = ({ job }) => (kept.jobs.listed.some(({ id }) => id === job) ? "is fetched" : "not in the gallery");

  const showCell = (cell, view) => {
    const isDone = cell.state === "completed" && Boolean(collection.get(pictureOf(cell)));
    view.node.disabled = !isDone;
    view.node.className = `cell ${cell.state ?? (cell.job ? "queued" : "")}`;
    const job = backend.jobs.get(cell.job);
    const under = job?.state === "running" ? `step ${job.step} of ${job.total}` : cell.job ? "in line" : "";
    view.text.textContent = isDone ? "" : cell.state === "completed" ? missing(cell) : (cell.error ?? under);
    view.image.hidden = !isDone || !view.url;
    if (!isDone || view.url || view.isAsked) return;
    view.isAsked = true;
    collection.thumb(pictureOf(cell)).then(
      (blob) => {
        view.url = URL.createObjectURL(blob);
        view.image.src = view.url;
        view.image.hidden = false;
      },
      () => {
        view.isAsked = false;
      },
    );
  };

  const showGrid = (grid) => {
    const view = views.get(grid.id) ?? create(grid);
    grid.cells.forEach((cell, at) => showCell(cell, view.cells[at]));
    const count = (wanted) => grid.cells.filter(({ state }) => wanted(state)).length;
    const [done, bad] = [count((state) => state === "completed"), count((state) => state && state !== "completed")];
    view.state.textContent = `${STATES[grid.state]}: ${done} of ${grid.cells.length} made${bad ? `, ${bad} not` : ""}`;
    view.bar.value = done + bad;
    view.bar.hidden = view.cancel.hidden = grid.state !== "running";
    view.save.disabled = done === 0;
    return view.node;
  };

  const show = () => {
    const nodes = grids.all.map(showGrid);
    for (const [id, { node, cells }] of views) {
      if (nodes.includes(node)) continue;
      for (const { url } of cells) if (url) URL.revokeObjectURL(url);
      node.remove();
      views.delete(id);
    }
    nodes.forEach((node, at) => {
      if (list.childNodes[at] !== node) list.insertBefore(node, list.childNodes[at] ?? null);
    });
    viewer.refresh();
  };

  grids.subscribe(show);
  collection.subscribe(show);
  kept.jobs.subscribe(show);
  backend.subscribe("choices", showAxes);
  request.subscribe(showAxes);
  await grids.open();
  showAxes();
  show();
};
