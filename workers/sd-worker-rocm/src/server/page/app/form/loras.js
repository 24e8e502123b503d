// LoRAs with more settings than `<lora:name:1>` in a prompt has.
import { makeList } from "./list.js";

const NUMBER = { kind: "number", min: -16, max: 16, step: 0.05 };
const ROWS = [
  { name: "path", label: "LoRA", kind: "choice", options: (c) => c.loras, usual: () => null },
  { name: "strength", label: "Strength", ...NUMBER, usual: () => 1, slider: { min: -1, max: 2 } },
  { name: "text_strength", label: "On the text", ...NUMBER, placeholder: "the same" },
  { name: "start", label: "From", kind: "number", min: 0, max: 1, step: 0.05, usual: () => 0 },
  { name: "end", label: "To", kind: "number", min: 0, max: 1, step: 0.05, usual: () => 1 },
];

export const makeLoras = (context) =>
  makeList(context, {
    param: "loras",
    title: "LoRA",
    most: context.backend.choices.limits.loras,
    addLabel: "Add a LoRA",
    hint: "The + LoRA button puts one into the prompt; here it has more settings.",
    fresh: () => ({ path: context.backend.choices.loras[0], strength: 1 }),
    render: (entry) => ROWS.map(entry.row),
  });
