// Pixels to paint beyond the picture's sides, by numbers; the canvas has handles for them.
import { make } from "../dom.js";
import { SIDES } from "./view.js";

// Sides that are added are rounded up so that the whole is a multiple of this, as the server does.
const MULTIPLE = 16;

// `changed()` is called after each change; `layers` tells the picture's size.
export const makeSides = (layers, changed) => {
  const pixels = { left: 0, right: 0, top: 0, bottom: 0 };
  const told = make("p", { class: "hint", "aria-live": "polite" });
  const inputs = Object.fromEntries(
    SIDES.map((side) => {
      const input = make("input", { type: "number", min: 0, step: 16, value: 0, id: `outpaint-${side}`, name: `outpaint.${side}` });
      input.addEventListener("input", () => {
        put(side, Math.max(0, Math.round(Number(input.value) || 0)));
        changed();
      });
      return [side, input];
    }),
  );
  const put = (side, value) => {
    pixels[side] = value;
    tell();
  };
  const set = (side, value) => {
    put(side, value);
    inputs[side].value = String(value);
    changed();
  };
  // While a side is dragged the view stays.
  const drag = (side, value) => {
    put(side, value);
    inputs[side].value = String(value);
  };
  const isEmpty = () => SIDES.every((side) => pixels[side] === 0);
  const whole = (side) => Math.ceil(side / MULTIPLE) * MULTIPLE;
  const tell = () => {
    const [width, height] = [layers.width + pixels.left + pixels.right, layers.height + pixels.top + pixels.bottom];
    told.textContent = isEmpty() ? "Drag the dots at the picture's edges, or give pixels." : `The result has ${whole(width)} x ${whole(height)} pixels.`;
  };
  const all = (value) => {
    for (const side of SIDES) set(side, value);
  };
  const fields = SIDES.map((side) => make("label", {}, side, inputs[side]));
  const buttons = [
    make("button", { type: "button", class: "small", onclick: () => all(64) }, "64 each"),
    make("button", { type: "button", class: "small", onclick: () => all(0) }, "None"),
  ];
  tell();
  const node = make("details", { class: "outpaint" }, make("summary", {}, "Outpaint"), make("div", { class: "row" }, fields, buttons), told);
  return { node, drag, pixels, isEmpty, clear: () => all(0) };
};
