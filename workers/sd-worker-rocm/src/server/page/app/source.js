// What the panes of the form start from: nothing, a picture, a canvas with a mask, the ends of a video. Each says what it
// adds to a job.
import { makeEditor } from "./canvas/editor.js";
import { $, make } from "./dom.js";
import { EDITING, OF_MASKS, OF_VIDEOS } from "./form/fields.js";
import { ServerError } from "./server.js";
import { makeSlot, takesPasted } from "./slot.js";

// Fields that mean nothing here.
const none = (rows) => Object.fromEntries(rows.map(({ name }) => [name, undefined]));

// Where a picture is missing.
const missing = (param, message) => {
  throw new ServerError(message, { param });
};

export class Source {
  #parts;
  #backend;
  #image;
  // The ends of a video.
  #ends = { first: makeSlot("First frame", () => {}), last: makeSlot("Last frame", () => {}) };

  constructor(context) {
    this.#backend = context.backend;
    const onDraw = () => context.sendTo({ blob: this.#image.blob }, "inpaint");
    const draw = make("button", { type: "button", class: "small draw", hidden: true, onclick: onDraw }, "Draw on it");
    this.#image = makeSlot("Picture to start from", (blob, bitmap) => {
      draw.hidden = !blob;
      if (bitmap) this.#takeSize(context, bitmap);
    });
    for (const { node, set } of Object.values(this.#ends)) takesPasted(node, set);
    takesPasted(this.#image.node, this.#image.set);
    const editor = makeEditor({
      opened: (bitmap) => this.#takeSize(context, bitmap),
      last: () => context.run.lastPicture(),
    });
    this.#parts = {
      text: { node: make("div", {}), compose: async () => ({ operation: "image_generation", ...none([...EDITING, ...OF_MASKS]) }) },
      image: {
        node: make("div", {}, this.#image.node, draw),
        set: this.#image.set,
        compose: async () => ({
          ...none(OF_MASKS),
          operation: "image_transform",
          input_image: this.#image.blob ?? missing("input_image", "Choose a picture to start from."),
        }),
      },
      inpaint: editor,
      video: { node: make("div", { class: "slots" }), compose: () => this.#video(context.backend.choices.video) },
    };
    $("source").append(...Object.values(this.#parts).map(({ node }) => node));
    this.show("text");
  }

  show(pane) {
    for (const [name, { node }] of Object.entries(this.#parts)) node.hidden = name !== pane;
  }

  // Fields of a job of a pane.
  async compose(pane) {
    const fields = await (this.#parts[pane] ?? this.#parts.text).compose();
    // Another model's may be kept in the form.
    return this.#backend.choices.video ? fields : { ...none(OF_VIDEOS), ...fields };
  }

  // A picture into a pane, with the mask that it had there, or to an end of the video.
  async set(place, blob, mask) {
    await (this.#ends[place] ?? this.#parts[place]).set(blob);
    if (place === "inpaint" && mask) await this.#parts.inpaint.setMask(mask);
  }

  // Shows the ends that the model takes.
  build({ video }) {
    const taken = Object.entries(this.#ends).filter(([end]) => video && video[end] !== "never");
    this.#parts.video.node.replaceChildren(...taken.map(([, { node }]) => node));
  }

  async #video(takes) {
    const { first, last } = this.#ends;
    for (const [end, { blob }] of Object.entries(this.#ends)) {
      if (takes[end] === "must" && !blob) missing(`${end}_frame`, `This model makes videos of a picture: choose the ${end} frame.`);
    }
    return {
      ...none([...EDITING, ...OF_MASKS]),
      operation: "image_generation",
      ...(takes.first !== "never" && first.blob && { first_frame: first.blob }),
      ...(takes.last !== "never" && last.blob && { last_frame: last.blob }),
    };
  }

  // The picture's own size where the model can have it, else its shape with the model's number of pixels.
  #takeSize({ request, backend }, { width, height }) {
    const { defaults, limits } = backend.choices;
    const [least, most] = limits.side;
    const area = 2 * defaults.width * defaults.height;
    const scale = Math.min(1, Math.sqrt(area / (width * height)), most / Math.max(width, height));
    const multiple = limits.side_multiple;
    const whole = (side) => Math.min(most, Math.max(least, Math.round((side * scale) / multiple) * multiple));
    request.update({ width: whole(width), height: whole(height) });
  }
}
