// ControlNets and T2I-Adapters: a network, a picture, what is made of it first, how strong and when.
import { make } from "../dom.js";
import { notice } from "../notices.js";
import { fromBase64 } from "../pictures.js";
import { makeSlot } from "../slot.js";
import { makePictureList } from "./list.js";
import { preprocess, thresholdRows } from "./preprocessing.js";

const share = { kind: "number", min: 0, max: 1, step: 0.05 };
const MODEL = { name: "model", label: "Network", kind: "choice", options: (c) => c.controls, usual: () => null };
const PREPROCESSOR = { name: "preprocessor", label: "Preprocessor", kind: "choice", options: (c) => c.preprocessors.map(({ name }) => name), usual: () => "none" };
const RESOLUTION = { name: "resolution", label: "Its resolution", kind: "number", min: 64, max: 4096, step: 64, placeholder: "usual" };
const ROWS = [
  { name: "strength", label: "Weight", kind: "number", min: 0, max: 2, step: 0.05, usual: () => 1, slider: true },
  { name: "start", label: "From", ...share, usual: () => 0, slider: true },
  { name: "end", label: "To", ...share, usual: () => 1, slider: true },
  { name: "mode", label: "Mode", kind: "choice", options: (c) => c.control_modes, usual: () => "balanced" },
  { name: "kind", label: "Kind", kind: "text", placeholder: "of unions: canny, depth, …" },
];

export const makeControls = (context) => {
  const { choices } = context.backend;
  return makePictureList(context, {
    param: "controls",
    title: "ControlNet",
    most: choices.limits.controls,
    addLabel: "Add a ControlNet",
    place: "control",
    named: (number) => `ControlNet ${number}`,
    fresh: () => ({ model: choices.controls[0] }),
    render: (entry) => render(entry, choices),
  });
};

const render = (entry, choices) => {
  const slot = makeSlot("Picture", (blob) => {
    if (blob !== (entry.get().image ?? null)) entry.change({ image: blob });
  });
  if (entry.get().image) slot.set(entry.get().image);
  const seen = make("div", { class: "seen" });
  const thresholds = make("div", {});
  const showThresholds = () => thresholds.replaceChildren(...thresholdRows(entry, choices));
  const preview = make("button", { type: "button", class: "small" }, "Preview");
  preview.addEventListener("click", async () => {
    const { image, preprocessor = "none", thresholds: values, resolution } = entry.get();
    if (!image) return notice("Choose a picture first.");
    preview.disabled = true;
    try {
      const made = fromBase64(await preprocess(image, { preprocessor, thresholds: values, resolution }));
      const use = make("button", { type: "button", class: "small", onclick: () => { entry.change({ image: made, preprocessor: null, thresholds: null, resolution: null }); entry.refresh(); } }, "Keep it as the picture");
      seen.replaceChildren(make("img", { src: URL.createObjectURL(made), alt: `What ${preprocessor} makes of it` }), use);
    } catch (error) {
      notice(error.message, { isError: true });
    } finally {
      preview.disabled = false;
    }
    return undefined;
  });
  const kind = entry.row(PREPROCESSOR);
  kind.addEventListener("change", () => {
    // Another one's thresholds mean something else.
    entry.change({ thresholds: null });
    showThresholds();
    seen.replaceChildren();
  });
  showThresholds();
  return [entry.row(MODEL), slot.node, kind, thresholds, entry.row(RESOLUTION), preview, seen, ROWS.map(entry.row)];
};
