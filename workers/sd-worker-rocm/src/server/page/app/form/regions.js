// Parts of the picture with prompts of their own: rectangles in shares of its sides.
import { makeList } from "./list.js";

const MOST = 16;
const share = { kind: "number", min: 0, max: 1, step: 0.05, slider: true };
const ROWS = [
  { name: "prompt", label: "Prompt", kind: "text", isNeeded: true },
  { name: "left", label: "Left", ...share, usual: () => 0 },
  { name: "top", label: "Top", ...share, usual: () => 0 },
  { name: "width", label: "Width", ...share, usual: () => 1 },
  { name: "height", label: "Height", ...share, usual: () => 1 },
  { name: "strength", label: "Weight", kind: "number", min: 0, max: 10, step: 0.1, usual: () => 1 },
];

// The first one is the left half, the second the right one.
const fresh = (count) => ({ prompt: "", left: count % 2 === 0 ? 0 : 0.5, width: 0.5 });

export const makeRegions = (context) =>
  makeList(context, {
    param: "regions",
    title: "Region",
    most: MOST,
    addLabel: "Add a region",
    hint: "A rectangle in shares of the picture, painted by a prompt of its own beside the one above.",
    fresh: () => fresh((context.request.fields.regions ?? []).length),
    render: (entry) => ROWS.map(entry.row),
  });
