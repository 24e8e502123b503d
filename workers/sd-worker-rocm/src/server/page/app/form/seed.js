// The seed: random unless it is given, with the last picture's at hand; and how many jobs are made in a row.
import { make } from "../dom.js";
import { iconButton } from "../icons.js";
import { makeField } from "./field.js";

const SEED = { name: "seed", label: "Seed", kind: "number", min: 0, step: 1, placeholder: "random" };

export const makeSeed = ({ request, backend, run }, register) => {
  const made = makeField(SEED, backend.choices, { get: () => request.fields.seed, set: (value) => request.update({ seed: value }) });
  register(made);
  const reuse = iconButton("retry", "Use the last picture's seed", () => {
    const seed = run.lastSeed;
    if (seed !== null) request.update({ seed });
  });
  made.node.querySelector(".control").append(iconButton("dice", "A random seed", () => request.update({ seed: null })), reuse);
  const count = make("input", { type: "number", id: "count", min: 1, max: 100, step: 1, value: 1, class: "short" });
  count.addEventListener("input", () => {
    run.count = Math.min(100, Math.max(1, Math.round(Number(count.value) || 1)));
  });
  const jobs = make("div", { class: "field number" }, make("label", { for: "count" }, "Jobs in a row"), make("span", { class: "control" }, count));
  return [made.node, jobs];
};
