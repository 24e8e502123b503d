// Sizes that suit the model: buttons, and one that swaps the sides.
import { make } from "../dom.js";
import { iconButton } from "../icons.js";

const RATIOS = [
  ["1:1", 1],
  ["4:3", 4 / 3],
  ["3:2", 3 / 2],
  ["16:9", 16 / 9],
];

export const makeSizes = ({ request, backend }) => {
  const { defaults, limits } = backend.choices;
  const [least, most] = limits.side;
  const multiple = limits.side_multiple;
  const whole = (side) => Math.min(most, Math.max(least, Math.round(side / multiple) * multiple));
  // As many pixels as the model's own size.
  const area = defaults.width * defaults.height;
  const size = (ratio) => [whole(Math.sqrt(area * ratio)), whole(Math.sqrt(area / ratio))];
  const set = ([width, height]) => request.update({ width, height });
  const current = () => [request.fields.width ?? defaults.width, request.fields.height ?? defaults.height];
  const buttons = RATIOS.map(([name, ratio]) => {
    const [width, height] = size(ratio);
    const label = `${name}, ${width} by ${height} pixels`;
    return make("button", { type: "button", class: "small", title: label, "aria-label": label, onclick: () => set([width, height]) }, name);
  });
  const own = make("button", { type: "button", class: "small", onclick: () => request.update({ width: null, height: null }) }, "The model's");
  const swap = iconButton("swap", "Swap width and height", () => {
    const [width, height] = current();
    set([height, width]);
  });
  const node = make("div", { class: "row presets", role: "group", "aria-label": "Sizes" }, own, buttons, swap);
  return { node };
};
