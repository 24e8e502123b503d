// Pictures made larger, without a prompt: by filters and networks, and faces restored where the server can.
import { make } from "../dom.js";
import { makeField } from "../form/field.js";
import { fromBase64, toBase64 } from "../pictures.js";
import { makeSlot, takesPasted } from "../slot.js";
import { busy, showResult } from "./result.js";

const share = { kind: "number", min: 0, max: 1, step: 0.05, slider: true };
const upscaler = { kind: "choice", options: (c) => c.upscalers };
const side = { kind: "number", min: 8, max: 16384, step: 8 };
const ROWS = [
  { name: "upscaler_1", label: "Upscaler", ...upscaler, usual: () => "Lanczos" },
  { name: "upscaling_resize", label: "Times as large", kind: "number", min: 1, max: 8, step: 0.25, usual: () => 2, slider: true },
  { name: "upscaling_resize_w", label: "Or width", ...side, placeholder: "by scale" },
  { name: "upscaling_resize_h", label: "And height", ...side, placeholder: "by scale" },
  { name: "upscaler_2", label: "Second upscaler", ...upscaler, usual: () => "None" },
  { name: "extras_upscaler_2_visibility", label: "Its visibility", ...share, usual: () => 0 },
];
const FACES = {
  GFPGAN: [{ name: "gfpgan_visibility", label: "GFPGAN", ...share, usual: () => 0 }],
  CodeFormer: [
    { name: "codeformer_visibility", label: "CodeFormer", ...share, usual: () => 0 },
    { name: "codeformer_weight", label: "CodeFormer's weight", ...share, usual: () => 0, hint: "0 changes most." },
  ],
};

export const mount = (element, context) => {
  const { backend } = context;
  const values = {};
  const status = make("p", { class: "status", role: "status" });
  const result = make("div", { class: "pictures" });
  const settings = make("div", { class: "group" });
  const slot = makeSlot("Picture", () => {});
  const go = make("button", { type: "submit", class: "primary" }, "Make it larger");
  const form = make("form", { class: "tool" }, slot.node, settings, go, status);
  element.classList.add("pane", "create");
  element.append(form, make("div", { class: "stage" }, result));
  const field = (row) =>
    makeField(row, backend.choices, {
      get: () => values[row.name],
      set: (value) => {
        values[row.name] = value;
      },
    }).node;
  backend.subscribe("choices", async () => {
    settings.replaceChildren(...ROWS.map(field));
    const restorers = await backend.get("sdapi/v1/face-restorers").catch(() => []);
    const known = restorers.flatMap(({ name }) => FACES[name] ?? []);
    settings.append(...known.map(field));
  });

  const run = async () => {
    const isSized = values.upscaling_resize_w || values.upscaling_resize_h;
    if (!slot.blob) throw new Error("Choose a picture first.");
    if (isSized && !(values.upscaling_resize_w && values.upscaling_resize_h)) throw new Error("Give both width and height, or neither.");
    const body = { image: await toBase64(slot.blob), upscaler_1: "Lanczos", ...values, resize_mode: isSized ? 1 : 0 };
    const { image } = await backend.post("sdapi/v1/extra-single-image", body);
    showResult(result, fromBase64(image), { name: "upscaled.png", alt: "The larger picture" }, context);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(go, status, "At work…", run);
  });
  takesPasted(slot.node, slot.set);
  context.addPlace("upscale", async (blob) => {
    context.open("upscale");
    await slot.set(blob);
  });
};
