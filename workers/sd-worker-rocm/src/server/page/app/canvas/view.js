// The picture on the screen: zoomed, moved, with the mask's tint, the sides to paint and the brush's ring over it.

const MOST_ZOOM = 32;
const LEAST_ZOOM = 0.05;
// Pixels of the screen around the picture, where the handles of the sides are.
const MARGIN = 22;
export const SIDES = ["left", "right", "top", "bottom"];
const HANDLE = 14;

export class View {
  scale = 1;
  left = 0;
  top = 0;
  // Where the brush is, in pixels of the picture; null if it is elsewhere.
  cursor = null;
  #canvas;
  #layers;
  #sides;
  #brush;
  #due = false;
  #isFitted = true;

  // `sides()` gives the pixels that are added at each side.
  constructor(canvas, layers, brush, sides) {
    this.#canvas = canvas;
    this.#layers = layers;
    this.#brush = brush;
    this.#sides = sides;
    new ResizeObserver(() => this.#resize()).observe(canvas);
  }

  #resize() {
    const { clientWidth, clientHeight } = this.#canvas;
    if (clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.width = Math.round(clientWidth * ratio);
    this.#canvas.height = Math.round(clientHeight * ratio);
    if (this.#isFitted) this.fit();
    this.draw();
  }

  // All of the picture, with its new sides, in the middle.
  fit() {
    const { width, height } = this.#layers;
    const { clientWidth, clientHeight } = this.#canvas;
    if (!width || !clientWidth) return;
    const { left, right, top, bottom } = this.#sides();
    const [whole, high] = [width + left + right, height + top + bottom];
    this.scale = Math.min((clientWidth - 2 * MARGIN) / whole, (clientHeight - 2 * MARGIN) / high, 8);
    this.left = (clientWidth - whole * this.scale) / 2 + left * this.scale;
    this.top = (clientHeight - high * this.scale) / 2 + top * this.scale;
    this.#isFitted = true;
    this.draw();
  }

  // The same, unless it was zoomed or moved.
  refit() {
    if (this.#isFitted) this.fit();
    else this.draw();
  }

  zoom(factor, x = this.#canvas.clientWidth / 2, y = this.#canvas.clientHeight / 2) {
    const next = Math.min(MOST_ZOOM, Math.max(LEAST_ZOOM, this.scale * factor));
    const real = next / this.scale;
    this.left = x - (x - this.left) * real;
    this.top = y - (y - this.top) * real;
    this.scale = next;
    this.#isFitted = false;
    this.draw();
  }

  move(x, y) {
    this.left += x;
    this.top += y;
    this.#isFitted = false;
    this.draw();
  }

  // From the screen, relative to the canvas, to the picture.
  toPicture(x, y) {
    return { x: (x - this.left) / this.scale, y: (y - this.top) / this.scale };
  }

  // The side whose handle is there.
  handleAt(x, y) {
    const near = (point) => Math.hypot(point.x - x, point.y - y) <= HANDLE;
    return SIDES.find((side) => near(this.#handles()[side])) ?? null;
  }

  // Middles of the edges of what will be the picture.
  #handles() {
    const { width, height } = this.#layers;
    const { left, right, top, bottom } = this.#sides();
    const x = (value) => this.left + value * this.scale;
    const y = (value) => this.top + value * this.scale;
    const [middle, center] = [x((width + right - left) / 2), y((height + bottom - top) / 2)];
    return {
      left: { x: x(-left) - 8, y: center },
      right: { x: x(width + right) + 8, y: center },
      top: { x: middle, y: y(-top) - 8 },
      bottom: { x: middle, y: y(height + bottom) + 8 },
    };
  }

  // Draws with the next frame.
  draw() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      this.#due = false;
      this.#render();
    });
  }

  #render() {
    const context = this.#canvas.getContext("2d");
    const ratio = this.#canvas.width / Math.max(1, this.#canvas.clientWidth);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    const { base, sketch, tint, width, height } = this.#layers;
    if (!base) return;
    context.setTransform(ratio * this.scale, 0, 0, ratio * this.scale, ratio * this.left, ratio * this.top);
    context.imageSmoothingEnabled = this.scale < 2;
    const { left, right, top, bottom } = this.#sides();
    context.fillStyle = "rgb(226 60 80 / 40%)";
    context.fillRect(-left, -top, width + left + right, height + top + bottom);
    context.fillStyle = "#808080";
    context.fillRect(0, 0, width, height);
    context.drawImage(base, 0, 0);
    context.drawImage(sketch.canvas, 0, 0);
    context.drawImage(tint.canvas, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(this.#canvas);
    for (const { x, y } of Object.values(this.#handles())) {
      context.beginPath();
      context.arc(x, y, 6, 0, 2 * Math.PI);
      context.fillStyle = style.getPropertyValue("--accent");
      context.fill();
    }
    if (this.cursor) this.#ring(context);
  }

  #ring(context) {
    const x = this.left + this.cursor.x * this.scale;
    const y = this.top + this.cursor.y * this.scale;
    for (const [color, width] of [["black", 3], ["white", 1]]) {
      context.beginPath();
      context.arc(x, y, Math.max(2, (this.#brush.size / 2) * this.scale), 0, 2 * Math.PI);
      context.strokeStyle = color;
      context.lineWidth = width;
      context.stroke();
    }
  }
}
