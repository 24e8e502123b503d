// What is drawn: a picture, colours over it (sketch) and a mask, with undo and redo.
//
// The mask is grey on black, as the server takes it: white is painted. Its tint, which the view shows over the picture,
// follows it.
import { canvasOf } from "../pictures.js";

// Bytes that undo may keep; the oldest steps go first.
const MOST_BYTES = 192 << 20;
const TINT = [226, 60, 80];
const TINT_ALPHA = 0.6;

const layer = (width, height) => {
  const canvas = canvasOf(width, height);
  return { canvas, context: canvas.getContext("2d", { willReadFrequently: true }), backup: null };
};

const area = ({ x, y, width, height }) => [x, y, width, height];

export class Layers {
  width = 0;
  height = 0;
  // The picture as it was opened, decoded.
  base = null;
  mask = null;
  sketch = null;
  tint = null;
  #done = [];
  #undone = [];
  #bytes = 0;
  #dirty = { mask: null, sketch: null };
  #changed;

  // `changed()` is called after each change.
  constructor(changed) {
    this.#changed = changed;
  }

  // Takes another picture. The mask stays where the new one has the old one's size.
  open(bitmap) {
    const isSame = this.base !== null && bitmap.width === this.width && bitmap.height === this.height;
    this.base = bitmap;
    [this.width, this.height] = [bitmap.width, bitmap.height];
    this.sketch = layer(this.width, this.height);
    if (!isSame) {
      this.mask = layer(this.width, this.height);
      this.mask.context.fillRect(0, 0, this.width, this.height);
      this.tint = layer(this.width, this.height);
    }
    [this.#done, this.#undone, this.#bytes] = [[], [], 0];
    for (const name of ["mask", "sketch"]) this.#keep(name);
    this.#changed();
  }

  close() {
    this.base = null;
    this.#changed();
  }

  // A copy that tells what a step has changed.
  #keep(name) {
    const { canvas } = this[name];
    const backup = layer(this.width, this.height);
    backup.context.drawImage(canvas, 0, 0);
    this[name].backup = backup;
    this.#dirty[name] = null;
  }

  // Notes that a part of a layer has changed; `end` makes a step of it.
  touch(name, left, top, right, bottom) {
    const x = Math.max(0, Math.floor(left));
    const y = Math.max(0, Math.floor(top));
    const width = Math.min(this.width, Math.ceil(right)) - x;
    const height = Math.min(this.height, Math.ceil(bottom)) - y;
    if (width <= 0 || height <= 0) return;
    const part = { x, y, width, height };
    this.#dirty[name] = around(this.#dirty[name], part);
    if (name === "mask") this.#tintPart(part);
    this.#changed();
  }

  // Ends a step: what has changed since the last one can be undone.
  end(name) {
    const part = this.#dirty[name];
    this.#dirty[name] = null;
    if (!part) return;
    const { context, backup } = this[name];
    const step = { name, part, before: backup.context.getImageData(...area(part)), after: context.getImageData(...area(part)) };
    backup.context.putImageData(step.after, part.x, part.y);
    this.#done.push(step);
    this.#undone = [];
    this.#bytes += bytes(step);
    while (this.#bytes > MOST_BYTES && this.#done.length > 1) this.#bytes -= bytes(this.#done.shift());
    this.#changed();
  }

  // Takes back what has changed since the last step.
  revert(name) {
    const part = this.#dirty[name];
    if (!part) return;
    this.#put(name, part, this[name].backup.context.getImageData(...area(part)));
    this.#dirty[name] = null;
  }

  get canUndo() {
    return this.#done.length > 0;
  }

  get canRedo() {
    return this.#undone.length > 0;
  }

  undo() {
    const step = this.#done.pop();
    if (!step) return;
    this.#undone.push(step);
    this.#bytes -= bytes(step);
    this.#restore(step, step.before);
  }

  redo() {
    const step = this.#undone.pop();
    if (!step) return;
    this.#done.push(step);
    this.#bytes += bytes(step);
    this.#restore(step, step.after);
  }

  #restore({ name, part }, pixels) {
    this.#put(name, part, pixels);
    this[name].backup.context.putImageData(pixels, part.x, part.y);
  }

  #put(name, part, pixels) {
    this[name].context.putImageData(pixels, part.x, part.y);
    if (name === "mask") this.#tintPart(part);
    this.#changed();
  }

  // Changes a whole layer by a function of its context, as a step.
  whole(name, draw) {
    const { context } = this[name];
    context.save();
    draw(context);
    context.restore();
    this.touch(name, 0, 0, this.width, this.height);
    this.end(name);
  }

  clear(name) {
    this.whole(name, (context) => {
      if (name === "sketch") context.clearRect(0, 0, this.width, this.height);
      else context.fillRect(0, 0, this.width, this.height);
    });
  }

  invertMask() {
    this.whole("mask", (context) => {
      context.globalCompositeOperation = "difference";
      context.fillStyle = "white";
      context.fillRect(0, 0, this.width, this.height);
    });
  }

  // Another picture as the mask, stretched to this one's size.
  setMask(bitmap) {
    this.whole("mask", (context) => {
      context.fillRect(0, 0, this.width, this.height);
      context.drawImage(bitmap, 0, 0, this.width, this.height);
      context.globalCompositeOperation = "saturation";
      context.fillStyle = "black";
      context.fillRect(0, 0, this.width, this.height);
    });
  }

  // What is transparent in the picture is masked.
  maskTransparent() {
    this.whole("mask", (context) => {
      context.fillStyle = "white";
      context.fillRect(0, 0, this.width, this.height);
      // The picture's shape in black over white.
      const shape = layer(this.width, this.height);
      shape.context.drawImage(this.base, 0, 0);
      shape.context.globalCompositeOperation = "source-in";
      shape.context.fillRect(0, 0, this.width, this.height);
      context.drawImage(shape.canvas, 0, 0);
    });
  }

  get hasMask() {
    return this.base !== null && some(this.mask, 0);
  }

  get hasSketch() {
    return this.base !== null && some(this.sketch, 3);
  }

  // The picture with the sketch over it.
  picture() {
    const canvas = canvasOf(this.width, this.height);
    const context = canvas.getContext("2d");
    context.drawImage(this.base, 0, 0);
    context.drawImage(this.sketch.canvas, 0, 0);
    return canvas;
  }

  // The mask, and where it is asked for also what is sketched.
  maskPicture(withSketch) {
    if (!withSketch) return this.mask.canvas;
    const canvas = canvasOf(this.width, this.height);
    const context = canvas.getContext("2d");
    context.drawImage(this.sketch.canvas, 0, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = "white";
    context.fillRect(0, 0, this.width, this.height);
    context.globalCompositeOperation = "destination-over";
    context.fillStyle = "black";
    context.fillRect(0, 0, this.width, this.height);
    context.globalCompositeOperation = "lighten";
    context.drawImage(this.mask.canvas, 0, 0);
    return canvas;
  }

  // The colour of a pixel as it is seen, as #rrggbb.
  colorAt(x, y) {
    const canvas = canvasOf(1, 1);
    const context = canvas.getContext("2d");
    for (const each of [this.base, this.sketch.canvas]) context.drawImage(each, -Math.floor(x), -Math.floor(y));
    const [...rgb] = context.getImageData(0, 0, 1, 1).data.slice(0, 3);
    return `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }

  #tintPart({ x, y, width, height }) {
    const pixels = this.mask.context.getImageData(x, y, width, height);
    const { data } = pixels;
    for (let i = 0; i < data.length; i += 4) {
      data[i + 3] = data[i] * TINT_ALPHA;
      [data[i], data[i + 1], data[i + 2]] = TINT;
    }
    this.tint.context.putImageData(pixels, x, y);
  }
}

const bytes = ({ before }) => 2 * before.data.length;

const around = (one, other) => {
  if (!one) return other;
  const x = Math.min(one.x, other.x);
  const y = Math.min(one.y, other.y);
  const right = Math.max(one.x + one.width, other.x + other.width);
  const bottom = Math.max(one.y + one.height, other.y + other.height);
  return { x, y, width: right - x, height: bottom - y };
};

// Whether any pixel of a layer has something in a channel.
const some = ({ canvas, context }, channel) => {
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = channel; i < data.length; i += 4) if (data[i] !== 0) return true;
  return false;
};
