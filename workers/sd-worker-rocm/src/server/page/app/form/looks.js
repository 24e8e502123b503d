// Pictures that a model looks at: those that the prompt speaks of, and a map of depths.
import { make } from "../dom.js";
import { makeSlot } from "../slot.js";

const KEEP = "keep_reference_size";

const part = (title, param, nodes) => {
  const error = make("p", { class: "error", hidden: true, role: "alert" });
  const details = make("details", { class: "group list", "data-list": param, open: true }, make("summary", {}, title), nodes, error);
  return { param, node: details, details, error };
};

export const makeReferences = (context, most) => {
  const { request } = context;
  const slots = make("div", { class: "slots" });
  const keep = make("input", { type: "checkbox", id: "keep-size" });
  keep.addEventListener("change", () => request.update({ [KEEP]: keep.checked || null }));
  const pictures = () => request.fields.references ?? [];
  let own = null;
  const put = (next) => {
    own = next.length > 0 ? next : undefined;
    request.update({ references: next });
    show();
  };
  const show = () => {
    keep.checked = request.fields[KEEP] === true;
    const count = Math.min(most, pictures().length + 1);
    const nodes = Array.from({ length: count }, (_, index) => {
      const slot = makeSlot(`Picture ${index + 1}`, (blob) => {
        if (blob === (pictures()[index] ?? null)) return;
        const next = [...pictures()];
        if (blob) next[index] = blob;
        else next.splice(index, 1);
        put(next);
      });
      if (pictures()[index]) slot.set(pictures()[index]);
      return slot.node;
    });
    slots.replaceChildren(...nodes);
  };
  const close = request.subscribe((names) => {
    if (names.includes(KEEP) || (names.includes("references") && request.fields.references !== own)) show();
  });
  show();
  context.addPlace("reference", (blob) => {
    put([...pictures().slice(0, most - 1), blob]);
    context.openForm();
  });
  const flag = make("div", { class: "field flag" }, keep, make("label", { for: keep.id }, "Look at them in their own size"));
  return { ...part("Pictures that the prompt speaks of", "references", [slots, flag]), close };
};

export const makeDepth = ({ request }) => {
  const slot = makeSlot("Depths: near is white", (blob) => {
    if (blob !== (request.fields.depth_image ?? null)) request.update({ depth_image: blob });
  });
  if (request.fields.depth_image) slot.set(request.fields.depth_image);
  const check = () => (request.fields.depth_image ? null : "This model follows depths: choose a picture of them.");
  return { ...part("Depths", "depth_image", [slot.node]), check };
};
