// A round brush: its strokes are stamps close to one another.
//
// On the mask a stamp is grey and the lighter (for the eraser the darker) of mask and stamp is kept, so that a stroke
// over itself changes nothing. On the sketch it is a colour that fades out.
import { canvasOf } from "../pictures.js";

// Stamps a diameter.
const DENSITY = 8;

export class Brush {
  size = 48;
  // From where to the edge it fades: 1 is all hard.
  hardness = 0.8;
  color = "#d02020";
  isEraser = false;
  #stamps = new Map();

  // Draws on `layers[name]` from one point to another, each `{ x, y, size }`.
  stroke(layers, name, from, to) {
    const { context } = layers[name];
    const distance = Math.hypot(to.x - from.x, to.y - from.y);
    const size = Math.max(1, to.size);
    const count = Math.max(1, Math.ceil((distance * DENSITY) / size));
    const stamp = this.#stamp(name, size);
    const radius = stamp.width / 2;
    context.save();
    if (name === "mask") context.globalCompositeOperation = this.isEraser ? "darken" : "lighten";
    else if (this.isEraser) context.globalCompositeOperation = "destination-out";
    for (let i = 1; i <= count; i += 1) {
      const share = i / count;
      context.drawImage(stamp, from.x + (to.x - from.x) * share - radius, from.y + (to.y - from.y) * share - radius);
    }
    context.restore();
    const [left, right] = [Math.min(from.x, to.x) - radius, Math.max(from.x, to.x) + radius];
    const [top, bottom] = [Math.min(from.y, to.y) - radius, Math.max(from.y, to.y) + radius];
    layers.touch(name, left, top, right, bottom);
  }

  #stamp(name, size) {
    const diameter = Math.max(2, Math.round(size));
    const key = [name, diameter, this.hardness, this.isEraser, name === "sketch" ? this.color : ""].join();
    const known = this.#stamps.get(key);
    if (known) return known;
    // A pen's pressure makes many sizes.
    if (this.#stamps.size > 64) this.#stamps.clear();
    const canvas = canvasOf(diameter, diameter);
    const context = canvas.getContext("2d");
    const radius = diameter / 2;
    // The edge is smooth in any case.
    const hard = Math.min(this.hardness, 1 - 1 / Math.max(2, radius));
    const gradient = context.createRadialGradient(radius, radius, radius * hard, radius, radius, radius);
    const [inner, outer] = name === "mask" ? (this.isEraser ? ["black", "white"] : ["white", "black"]) : [this.color, `${this.color}00`];
    gradient.addColorStop(0, inner);
    gradient.addColorStop(1, outer);
    context.fillStyle = gradient;
    context.fillRect(0, 0, diameter, diameter);
    this.#stamps.set(key, canvas);
    return canvas;
  }
}
