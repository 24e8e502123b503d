// The pane of the history: what was asked for, to be searched, pinned and used again.
import { copyText, make, renew } from "./dom.js";
import { keptOf } from "./kept.js";
import { notice } from "./notices.js";
import { matches } from "./search.js";

const SHOWN = 50;

// What of a request is told beside its prompt.
const TOLD = [
  ["steps", (value) => `${value} steps`],
  ["sampler", (value) => value],
  ["schedule", (value) => value],
  ["guidance_scale", (value) => `guidance ${value}`],
  ["width", (value, { height }) => (height ? `${value}×${height}` : `${value} wide`)],
  ["batch", (value) => (value > 1 ? `${value} pictures` : null)],
  ["strength", (value) => `strength ${value}`],
  ["model", (value) => value],
];

const KINDS = { image_transform: "from a picture", image_inpaint: "inpainting" };

const settings = (fields) =>
  [
    KINDS[fields.operation],
    ...TOLD.map(([name, told]) =>
      fields[name] === undefined || fields[name] === null ? null : told(fields[name], fields),
    ),
  ]
    .filter(Boolean)
    .join(" · ");

export const mount = async (element, context) => {
  const { past } = await keptOf(context);
  let most = SHOWN;
  const search = make("input", {
    type: "search",
    placeholder: "Search",
    "aria-label": "Search requests",
    oninput: () => show(),
  });
  const count = make("span", { class: "hint", role: "status" });
  const clear = make("button", { type: "button", class: "quiet", onclick: () => removeAll() }, "Delete all but pinned");
  const list = make("ol", { class: "past" });
  const more = make(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => {
        most += SHOWN;
        show();
      },
    },
    "Show more",
  );
  element.replaceChildren(make("div", { class: "bar row" }, search, count, clear), list, more);

  const removeAll = () => {
    const ids = past.all.filter(({ pinned }) => !pinned).map(({ id }) => id);
    if (ids.length && confirm(`Delete ${ids.length} requests from the history of this browser?`)) past.remove(ids);
  };

  // The pane that starts from nothing.
  const openPlain = () => context.open(context.backend.choices?.video ? "video" : "text");

  // Puts a request back into the form, with the pictures that its pane had.
  const useAll = async (fields) => {
    const {
      operation: _,
      input_image,
      init_image,
      mask_image: mask,
      first_frame: first,
      last_frame: last,
      ...rest
    } = fields;
    // The canvas begins with its own sides.
    const { outpaint, ...settings } = rest;
    const blob = init_image ?? input_image;
    const { request, sendTo } = context;
    if (blob) await sendTo({ blob, mask }, mask || outpaint ? "inpaint" : "image");
    else openPlain();
    for (const [end, frame] of Object.entries({ first, last })) if (frame) await sendTo({ blob: frame }, end);
    // A picture that is sent changes the size.
    request.replace(settings);
    notice(
      outpaint
        ? "The form has the request now, but for the sides that were added."
        : "The form has the whole request now.",
    );
  };

  const usePrompts = ({ prompt, negative_prompt }) => {
    context.request.update({ prompt, negative_prompt });
    context.openForm();
    notice("The form has its prompts now.");
  };

  const failed = (error) => notice(error.message, { isError: true });

  const row = ({ id, time, count: times, fields, pinned }) =>
    make(
      "li",
      { class: pinned ? "pinned" : null, "data-id": id },
      make("p", { class: "prompt" }, fields.prompt || "(no prompt)"),
      fields.negative_prompt ? make("p", { class: "hint prompt" }, `without: ${fields.negative_prompt}`) : null,
      make(
        "p",
        { class: "hint" },
        `${new Date(time).toLocaleString()}${times > 1 ? ` · ${times} times` : ""} · ${settings(fields)}`,
      ),
      make(
        "div",
        { class: "row" },
        make("button", { type: "button", class: "small", onclick: () => useAll(fields).catch(failed) }, "Use all"),
        make("button", { type: "button", class: "small", onclick: () => usePrompts(fields) }, "Use prompt"),
        make(
          "button",
          {
            type: "button",
            class: "small quiet",
            onclick: () => copyText(fields.prompt ?? "").then(() => notice("The prompt is copied.")),
          },
          "Copy prompt",
        ),
        make(
          "button",
          {
            type: "button",
            class: "small quiet",
            "aria-pressed": String(Boolean(pinned)),
            onclick: () => past.pin(id, !pinned),
          },
          pinned ? "Unpin" : "Pin",
        ),
        make("button", { type: "button", class: "small quiet", onclick: () => past.remove([id]) }, "Delete"),
      ),
    );

  const show = () => {
    const found = past.all.filter(({ fields }) =>
      matches(search.value, [fields.prompt, fields.negative_prompt, fields.model]),
    );
    count.textContent = `${found.length} ${found.length === 1 ? "request" : "requests"}`;
    const nothing = search.value ? "No request has these words." : "Requests that you send are listed here.";
    renew(list, found.length ? found.slice(0, most).map(row) : [make("li", { class: "hint" }, nothing)]);
    more.hidden = found.length <= most;
  };

  past.subscribe(show);
  show();
};
