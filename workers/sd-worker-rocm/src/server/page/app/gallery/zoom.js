// A picture that is enlarged by wheel, double click and two fingers, moved by drag, and swiped to the next one.

const MOST = 16;
const DOUBLE = 2.5;
// Pixels that a finger moves before it is a swipe.
const SWIPE = 60;

export class Zoom {
  #stage;
  #scale = 1;
  #x = 0;
  #y = 0;
  #pointers = new Map();
  #begun = null;
  #swiped;

  // `swiped(1 or -1)` where the picture is not enlarged.
  constructor(stage, swiped) {
    this.#stage = stage;
    this.#swiped = swiped;
    stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.#by(Math.exp(-event.deltaY * 0.002), event.clientX, event.clientY);
      },
      { passive: false },
    );
    stage.addEventListener("dblclick", (event) => {
      if (this.#scale > 1) this.reset();
      else this.#by(DOUBLE, event.clientX, event.clientY);
    });
    stage.addEventListener("pointerdown", (event) => this.#down(event));
    stage.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, (event) => this.#up(event));
  }

  get scale() {
    return this.#scale;
  }

  reset() {
    this.#scale = 1;
    this.#x = this.#y = 0;
    this.#apply();
  }

  // Enlarges around the middle.
  step(factor) {
    const { left, top, width, height } = this.#stage.getBoundingClientRect();
    this.#by(factor, left + width / 2, top + height / 2);
  }

  #by(factor, clientX, clientY) {
    const { left, top, width, height } = this.#stage.getBoundingClientRect();
    const scale = Math.min(MOST, Math.max(1, this.#scale * factor));
    const [x, y] = [clientX - left - width / 2, clientY - top - height / 2];
    // The point under the pointer stays there.
    this.#x = x - ((x - this.#x) * scale) / this.#scale;
    this.#y = y - ((y - this.#y) * scale) / this.#scale;
    this.#scale = scale;
    if (scale === 1) this.#x = this.#y = 0;
    this.#apply();
  }

  #apply() {
    const { width, height } = this.#stage.getBoundingClientRect();
    const [across, down] = [(width * (this.#scale - 1)) / 2, (height * (this.#scale - 1)) / 2];
    this.#x = Math.min(across, Math.max(-across, this.#x));
    this.#y = Math.min(down, Math.max(-down, this.#y));
    for (const picture of this.#stage.querySelectorAll("img, video")) {
      picture.style.transform = this.#scale === 1 ? "" : `translate(${this.#x}px, ${this.#y}px) scale(${this.#scale})`;
    }
    this.#stage.classList.toggle("zoomed", this.#scale > 1);
  }

  #down(event) {
    // A video's controls are its own.
    if (event.target.tagName === "VIDEO") return;
    event.preventDefault();
    this.#stage.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, event);
    this.#begun = { x: event.clientX, y: event.clientY, fingers: this.#pointers.size };
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const others = [...this.#pointers.values()].filter(({ pointerId }) => pointerId !== event.pointerId);
    this.#pointers.set(event.pointerId, event);
    if (others.length === 1) {
      const distance = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
      const [other] = others;
      this.#begun.fingers = 2;
      this.#by(
        distance(event, other) / distance(before, other),
        (event.clientX + other.clientX) / 2,
        (event.clientY + other.clientY) / 2,
      );
    } else if (others.length === 0 && this.#scale > 1) {
      this.#x += event.clientX - before.clientX;
      this.#y += event.clientY - before.clientY;
      this.#apply();
    }
  }

  #up(event) {
    if (!this.#pointers.delete(event.pointerId) || this.#pointers.size) return;
    const begun = this.#begun;
    this.#begun = null;
    if (event.type === "pointercancel" || begun.fingers > 1 || this.#scale > 1) return;
    const [x, y] = [event.clientX - begun.x, event.clientY - begun.y];
    if (Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) this.#swiped(x < 0 ? 1 : -1);
  }
}
