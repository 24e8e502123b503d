// The canvas of the inpaint pane: a picture, a mask by brush, colours, sides to paint; and what of it a job gets.
import { make } from "../dom.js";
import { OF_MASKS } from "../form/fields.js";
import { iconButton } from "../icons.js";
import { notice } from "../notices.js";
import { decoded, TAKEN, toPng } from "../pictures.js";
import { ServerError } from "../server.js";
import { takesPasted, takesPictures } from "../slot.js";
import { Brush } from "./brush.js";
import { Layers } from "./layers.js";
import { listen } from "./pointers.js";
import { makeSides } from "./sides.js";
import { View } from "./view.js";

const none = (rows) => Object.fromEntries(rows.map(({ name }) => [name, undefined]));

// What can be drawn on; `null` moves the picture.
const TOOLS = [
  { id: "mask", label: "Mask", icon: "brush" },
  { id: "sketch", label: "Sketch", icon: "palette" },
  { id: null, label: "Move", icon: "pan" },
];

// `opened(bitmap)` is called for each picture, `last()` gives the last result's blob or null.
export const makeEditor = ({ opened, last }) => {
  let source = null;
  let tool = "mask";
  const canvas = make("canvas", {
    class: "canvas",
    tabindex: 0,
    role: "application",
    "aria-label": "Canvas. Arrows move the brush, Enter paints, Shift makes small steps.",
    "aria-keyshortcuts": "B S E [ ] I Control+Z Control+Shift+Z",
  });
  const layers = new Layers(() => changed());
  const brush = new Brush();
  const sides = makeSides(layers, () => view.refit());
  const view = new View(canvas, layers, brush, () => sides.pixels);

  // Opening ------------------------------------------------------------------------------------------

  const set = async (blob) => {
    try {
      const bitmap = await decoded(blob);
      source = blob;
      layers.open(bitmap);
      sides.clear();
      view.fit();
      opened(bitmap);
    } catch (error) {
      notice(error.message, { isError: true });
    }
  };
  const close = () => {
    source = null;
    layers.close();
  };
  const chooser = (label, take) => {
    const input = make("input", { type: "file", accept: TAKEN.join(","), class: "hidden-visually" });
    input.addEventListener("change", async () => {
      const [file] = input.files;
      input.value = "";
      if (file) await take(file);
    });
    return make("label", { class: "button small file" }, input, label);
  };
  const setMask = async (blob) => {
    try {
      layers.setMask(await decoded(blob));
    } catch (error) {
      notice(error.message, { isError: true });
    }
  };
  const takeLast = async () => {
    const blob = await last();
    if (blob) await set(blob);
    else notice("There is no result yet.");
  };

  // Tools --------------------------------------------------------------------------------------------

  const toolButtons = TOOLS.map(({ id, label, icon }) => {
    const button = iconButton(icon, label, () => choose(id));
    button.dataset.tool = id ?? "move";
    return button;
  });
  const eraser = iconButton("eraser", "Eraser (E)", () => erase(!brush.isEraser));
  const color = make("input", { type: "color", value: brush.color, "aria-label": "Colour of the sketch", title: "Colour; Alt and a click take one from the picture" });
  color.addEventListener("input", () => {
    brush.color = color.value;
  });
  const range = (label, attributes, take) => {
    const input = make("input", { type: "range", "aria-label": label, ...attributes });
    input.addEventListener("input", () => take(Number(input.value)));
    return input;
  };
  const size = range("Size of the brush", { min: 2, max: 256, step: 1, value: brush.size, name: "brush-size" }, (value) => {
    brush.size = value;
    view.draw();
  });
  const hardness = range("Hardness of the brush", { min: 0, max: 1, step: 0.05, value: brush.hardness, name: "brush-hardness" }, (value) => {
    brush.hardness = value;
  });
  const undo = iconButton("undo", "Undo (Ctrl+Z)", () => layers.undo());
  const redo = iconButton("redo", "Redo (Ctrl+Shift+Z)", () => layers.redo());
  const invert = iconButton("invert", "Invert the mask (I)", () => layers.invertMask());
  const clear = iconButton("trash", "Clear what is drawn here", () => layers.clear(tool ?? "mask"));
  const sketchMasks = make("input", { type: "checkbox", id: "sketch-masks", checked: true });

  const choose = (id) => {
    tool = id;
    showTools();
  };
  const erase = (isOn) => {
    brush.isEraser = isOn;
    showTools();
  };
  const showTools = () => {
    for (const button of toolButtons) button.setAttribute("aria-pressed", String(button.dataset.tool === (tool ?? "move")));
    eraser.setAttribute("aria-pressed", String(brush.isEraser));
    const isSketch = tool === "sketch";
    color.hidden = !isSketch;
    invert.hidden = isSketch;
    canvas.dataset.tool = tool ?? "move";
  };
  const resize = (factor) => {
    brush.size = Math.min(256, Math.max(2, Math.round(brush.size * factor)));
    size.value = String(brush.size);
    view.draw();
  };

  const KEYS = {
    b: () => choose("mask"),
    s: () => choose("sketch"),
    e: () => erase(!brush.isEraser),
    i: () => layers.invertMask(),
    "[": () => resize(1 / 1.2),
    "]": () => resize(1.2),
    "+": () => view.zoom(1.25),
    "-": () => view.zoom(0.8),
    0: () => view.fit(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!layers.base) return;
    const isCommand = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    if (isCommand && (key === "z" || key === "y")) {
      event.preventDefault();
      if (key === "y" || event.shiftKey) layers.redo();
      else layers.undo();
    } else if (!isCommand && !event.altKey && KEYS[key]) {
      event.preventDefault();
      KEYS[key]();
    }
  });

  // Showing ------------------------------------------------------------------------------------------

  const empty = make("p", { class: "hint" }, "Choose, drop or paste a picture, or send one here from the results or the gallery.");
  const facts = make("span", { class: "hint" });
  const drawing = make(
    "div",
    { class: "row tools", role: "toolbar", "aria-label": "Canvas" },
    make("span", { class: "row", role: "group", "aria-label": "Tools" }, toolButtons, eraser, color),
    make("label", { class: "range" }, "Size", size),
    make("label", { class: "range" }, "Hardness", hardness),
    make("span", { class: "row" }, undo, redo, invert, clear),
    make(
      "span",
      { class: "row" },
      iconButton("minus", "Smaller (-)", () => view.zoom(0.8)),
      iconButton("fit", "All of it (0)", () => view.fit()),
      iconButton("plus", "Larger (+)", () => view.zoom(1.25)),
    ),
  );
  const more = make(
    "div",
    { class: "row" },
    chooser("Mask from a file", setMask),
    make("button", { type: "button", class: "small", onclick: () => layers.maskTransparent() }, "Mask what is transparent"),
    make("span", { class: "row" }, sketchMasks, make("label", { for: sketchMasks.id }, "What is sketched is masked")),
  );
  const head = make(
    "div",
    { class: "row" },
    chooser("Choose a picture", set),
    make("button", { type: "button", class: "small", onclick: takeLast }, "Take the last result"),
    make("button", { type: "button", class: "small quiet remove", onclick: close }, "Remove"),
    facts,
  );
  const node = make("div", { class: "editor", role: "group", "aria-label": "Picture and mask" }, head, drawing, canvas, empty, more, sides.node);
  takesPictures(node, set);
  takesPasted(node, set);

  const changed = () => {
    const isOpen = layers.base !== null;
    for (const part of [drawing, canvas, more, sides.node, head.querySelector(".remove")]) part.hidden = !isOpen;
    empty.hidden = isOpen;
    facts.textContent = isOpen ? `${layers.width} x ${layers.height}` : "";
    undo.disabled = !layers.canUndo;
    redo.disabled = !layers.canRedo;
    view.draw();
  };

  listen(canvas, layers, view, brush, {
    layer: () => tool,
    pick: (x, y) => {
      brush.color = layers.colorAt(x, y);
      color.value = brush.color;
    },
    drag: sides.drag,
    dragged: () => view.refit(),
    sides: () => sides.pixels,
  });
  changed();
  showTools();

  // What a job gets ----------------------------------------------------------------------------------

  const compose = async () => {
    if (!layers.base) throw new ServerError("Choose a picture to paint on.", { param: "init_image" });
    const hasSketch = layers.hasSketch;
    const masksSketch = hasSketch && sketchMasks.checked;
    const hasMask = layers.hasMask || masksSketch;
    const isExtended = !sides.isEmpty();
    if (!hasMask && !hasSketch && !isExtended) {
      throw new ServerError("Draw over what is to be painted anew, or extend the picture (Outpaint).", { param: "mask_image" });
    }
    const picture = hasSketch ? await toPng(layers.picture()) : source;
    const extended = isExtended && {
      outpaint: { ...sides.pixels },
      // The extended picture has a size of its own.
      width: undefined,
      height: undefined,
    };
    if (hasMask) {
      const mask = await toPng(layers.maskPicture(masksSketch));
      return { operation: "image_inpaint", init_image: picture, mask_image: mask, ...extended };
    }
    return { ...(isExtended ? {} : none(OF_MASKS)), operation: "image_transform", input_image: picture, ...extended };
  };

  return { node, set, setMask, compose };
};
