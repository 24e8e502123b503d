// What the panes of the form start from: nothing, a picture, a canvas with a mask, the ends of a video. Each says what it
// adds to a job.
import { $, make } from "./dom.js";
import { OF_A_PICTURE } from "./form/fields.js";
import { ServerError } from "./server.js";
import { makeSlot, takesPasted } from "./slot.js";

const none = (names) => Object.fromEntries(names.map((name) => [name, undefined]));

// Where a picture is missing.
const missing = (param, message) => {
  throw new ServerError(message, { param });
};

export class Source {
  #parts;
  #image;

  constructor(context) {
    this.#image = makeSlot("Picture to start from", (blob, bitmap) => {
      if (bitmap) this.#takeSize(context, bitmap);
    });
    takesPasted(this.#image.node, this.#image.set);
    this.#parts = {
      text: { node: make("div", {}), compose: async () => ({ operation: "image_generation", ...none(OF_A_PICTURE) }) },
      image: {
        node: this.#image.node,
        set: this.#image.set,
        compose: async () => ({
          operation: "image_transform",
          input_image: this.#image.blob ?? missing("input_image", "Choose a picture to start from."),
        }),
      },
    };
    $("source").append(...Object.values(this.#parts).map(({ node }) => node));
    this.show("text");
  }

  get names() {
    return Object.keys(this.#parts);
  }

  show(pane) {
    for (const [name, { node }] of Object.entries(this.#parts)) node.hidden = name !== pane;
  }

  // Fields of a job of a pane.
  compose(pane) {
    return (this.#parts[pane] ?? this.#parts.text).compose();
  }

  // A picture into a pane.
  async set(pane, blob) {
    await this.#parts[pane].set(blob);
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
