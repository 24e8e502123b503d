// What preprocessors make of a picture, for ControlNets.
import { make } from "../dom.js";
import { makeField } from "../form/field.js";
import { preprocess, thresholdRows } from "../form/preprocessing.js";
import { fromBase64 } from "../pictures.js";
import { makeSlot, takesPasted } from "../slot.js";
import { busy, showResult } from "./result.js";

const KIND = { name: "preprocessor", label: "Preprocessor", kind: "choice", options: (c) => c.preprocessors.map(({ name }) => name), usual: () => "none" };
const RESOLUTION = { name: "resolution", label: "Resolution", kind: "number", min: 64, max: 4096, step: 64, placeholder: "usual" };

export const mount = (element, context) => {
  const { backend } = context;
  let values = {};
  const entry = {
    get: () => values,
    change: (fields) => {
      values = { ...values, ...fields };
    },
  };
  const status = make("p", { class: "status", role: "status" });
  const result = make("div", { class: "pictures" });
  const settings = make("div", { class: "group" });
  const thresholds = make("div", {});
  const slot = makeSlot("Picture", () => {});
  const go = make("button", { type: "submit", class: "primary" }, "Preprocess");
  const form = make("form", { class: "tool" }, slot.node, settings, go, status);
  element.classList.add("pane", "create");
  element.append(form, make("div", { class: "stage" }, result));
  const field = (row) => makeField(row, backend.choices, { get: () => values[row.name], set: (value) => entry.change({ [row.name]: value }) }).node;
  backend.subscribe("choices", () => {
    const kind = field(KIND);
    kind.addEventListener("change", () => {
      entry.change({ thresholds: null });
      thresholds.replaceChildren(...thresholdRows(entry, backend.choices));
    });
    thresholds.replaceChildren(...thresholdRows(entry, backend.choices));
    settings.replaceChildren(kind, thresholds, field(RESOLUTION));
  });

  const run = async () => {
    if (!slot.blob) throw new Error("Choose a picture first.");
    const { preprocessor } = values;
    if (!preprocessor) throw new Error("Choose a preprocessor.");
    const made = fromBase64(await preprocess(slot.blob, values));
    showResult(result, made, { name: `${preprocessor}.png`, alt: `What ${preprocessor} makes of it` }, context);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(go, status, "At work…", run);
  });
  takesPasted(slot.node, slot.set);
  context.addPlace("preprocess", async (blob) => {
    context.open("preprocess");
    await slot.set(blob);
  });
};
