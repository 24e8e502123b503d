// IP-Adapters: pictures as prompts.
import { make } from "../dom.js";
import { makeSlot } from "../slot.js";
import { makeList } from "./list.js";

const MOST_PICTURES = 4;
const share = { kind: "number", min: 0, max: 1, step: 0.05 };
const MODEL = { name: "model", label: "Adapter", kind: "choice", options: (c) => c.controls, usual: () => null };
const ROWS = [
  { name: "strength", label: "Weight", kind: "number", min: 0, max: 2, step: 0.05, usual: () => 1, slider: true },
  { name: "start", label: "From", ...share, usual: () => 0, slider: true },
  { name: "end", label: "To", ...share, usual: () => 1, slider: true },
  { name: "blocks", label: "Blocks", kind: "choice", options: () => ["all", "style", "layout", "style+layout"], usual: () => "all" },
];

export const makeAdapters = (context) => {
  const { choices } = context.backend;
  const list = makeList(context, {
    param: "ip_adapters",
    title: "IP-Adapter",
    most: choices.limits.controls,
    addLabel: "Add an IP-Adapter",
    fresh: () => ({ model: choices.controls[0], images: [] }),
    render,
  });
  const check = () => {
    const without = list.entries().findIndex(({ images }) => !images?.length);
    return without < 0 ? null : `IP-Adapter ${without + 1} has no picture: choose one, or remove it.`;
  };
  return { ...list, check };
};

const render = (entry) => {
  const images = () => entry.get().images ?? [];
  const slots = Array.from({ length: Math.min(MOST_PICTURES, images().length + 1) }, (_, index) => {
    const slot = makeSlot(`Picture ${index + 1}`, (blob) => {
      if (blob === (images()[index] ?? null)) return;
      const next = [...images()];
      if (blob) next[index] = blob;
      else next.splice(index, 1);
      entry.change({ images: next });
      entry.refresh();
    });
    if (images()[index]) slot.set(images()[index]);
    return slot.node;
  });
  const mask = makeSlot("Mask: it acts where this is white", (blob) => {
    if (blob !== (entry.get().mask ?? null)) entry.change({ mask: blob });
  });
  if (entry.get().mask) mask.set(entry.get().mask);
  return [entry.row(MODEL), make("div", { class: "slots" }, slots), ROWS.map(entry.row), mask.node];
};
