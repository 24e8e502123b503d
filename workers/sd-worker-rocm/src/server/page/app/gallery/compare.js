// Two pictures, one over the other, with an edge between them that is moved.
import { make } from "../dom.js";
import { notice } from "../notices.js";

export class Compare {
  #collection;
  #urls = [];
  #back = make("img", { alt: "" });
  #front = make("img", { alt: "", class: "front" });
  #edge = make("div", { class: "edge" });
  #stage = make("div", { class: "sight" }, this.#back, this.#front, this.#edge);
  #slider = make("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 0.5,
    "aria-label": "Where the left picture ends",
    oninput: () => this.#show(),
  });
  #names = make("p", { class: "row names" });
  #dialog = make(
    "dialog",
    { class: "compare", "aria-label": "Two pictures compared", onclose: () => this.#clear() },
    make("form", { method: "dialog", class: "row" }, this.#names, make("button", { class: "small" }, "Close")),
    this.#stage,
    this.#slider,
  );

  constructor(collection) {
    this.#collection = collection;
    document.body.append(this.#dialog);
    const move = (event) => {
      const { left, width } = this.#stage.getBoundingClientRect();
      this.#slider.value = String((100 * (event.clientX - left)) / width);
      this.#show();
    };
    this.#stage.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.#stage.setPointerCapture(event.pointerId);
      move(event);
    });
    this.#stage.addEventListener("pointermove", (event) => {
      if (this.#stage.hasPointerCapture(event.pointerId)) move(event);
    });
  }

  // The older one is on the left.
  async open(one, other) {
    const pair = [one, other].sort((a, b) => a.time - b.time || a.index - b.index);
    try {
      const files = await Promise.all(pair.map(({ id }) => this.#collection.files(id)));
      this.#urls = files.map(({ file }) => URL.createObjectURL(file));
    } catch (error) {
      notice(error.message, { isError: true });
      return;
    }
    [this.#front.src, this.#back.src] = this.#urls;
    [this.#front.alt, this.#back.alt] = pair.map(({ prompt }) => prompt);
    this.#names.replaceChildren(...pair.map(({ seed, prompt }) => make("span", {}, `${seed} · ${prompt}`)));
    this.#slider.value = "50";
    this.#show();
    this.#dialog.showModal();
    this.#slider.focus();
  }

  #show() {
    const share = Number(this.#slider.value);
    this.#front.style.clipPath = `inset(0 ${100 - share}% 0 0)`;
    this.#edge.style.left = `${share}%`;
  }

  #clear() {
    for (const url of this.#urls) URL.revokeObjectURL(url);
    this.#urls = [];
    this.#front.removeAttribute("src");
    this.#back.removeAttribute("src");
  }
}
