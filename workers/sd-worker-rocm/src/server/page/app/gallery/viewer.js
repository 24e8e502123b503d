// One picture or video, large, with what is known of it and what can be done with it.
import { copyText, make } from "../dom.js";
import { notice } from "../notices.js";
import { sendMenu } from "../results.js";
import { fileName } from "./names.js";
import { Zoom } from "./zoom.js";

// Formats that browsers play as videos; other moving pictures are pictures to them.
const isPlayed = (blob) => blob?.type.startsWith("video/");

// The frame that a video shows, or a picture, as PNG.
const frameOf = async (node) => {
  const canvas = document.createElement("canvas");
  canvas.width = node.videoWidth || node.naturalWidth;
  canvas.height = node.videoHeight || node.naturalHeight;
  canvas.getContext("2d").drawImage(node, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
};

export class Viewer {
  #collection;
  #context;
  #actions;
  #ids = [];
  #id = null;
  #url = null;
  #shown = null;
  // Counts the pictures that were asked for: one that is read late is not shown in place of a newer one.
  #turn = 0;
  #stage = make("div", { class: "sight" });
  #facts = make("pre", { class: "facts", tabindex: 0 });
  #place = make("span", { class: "hint" });
  #loop = make("input", { type: "checkbox", checked: true, onchange: () => this.#setLoop() });
  #loopRow = make("label", { class: "row", hidden: true }, this.#loop, "Loop");
  #send = make("span");
  #star;
  #dialog;
  #zoom;

  // `actions`: collection, context, remove(ids) that asks first, download(picture).
  constructor({ collection, context, remove, download }) {
    this.#collection = collection;
    this.#actions = { remove, download };
    const button = (label, run, attributes = {}) =>
      make(
        "button",
        {
          type: "button",
          class: "small",
          onclick: () => Promise.resolve(run(this.#picture)).catch((error) => notice(error.message, { isError: true })),
          ...attributes,
        },
        label,
      );
    const copy = (text, what) => copyText(text).then(() => notice(`${what} copied.`));
    this.#star = button("☆ Favourite", (picture) => collection.favour(picture.id, !picture.favourite));
    this.#context = context;
    this.#dialog = make(
      "dialog",
      { class: "viewer", "aria-label": "Picture", onclose: () => this.#clear() },
      make(
        "div",
        { class: "row top" },
        this.#place,
        this.#loopRow,
        button("Smaller", () => this.#zoom.step(1 / 1.5), { "aria-label": "Smaller (−)" }),
        button("Larger", () => this.#zoom.step(1.5), { "aria-label": "Larger (+)" }),
        button("Close", () => this.#dialog.close(), { class: "small close" }),
      ),
      make(
        "div",
        { class: "middle" },
        button("‹", () => this.#step(-1), { class: "turn", "aria-label": "Previous picture (←)" }),
        this.#stage,
        button("›", () => this.#step(1), { class: "turn", "aria-label": "Next picture (→)" }),
      ),
      make(
        "div",
        { class: "row bottom" },
        this.#send,
        this.#star,
        button("Download", (picture) => this.#actions.download(picture)),
        button("Copy prompt", ({ prompt }) => copy(prompt, "The prompt is")),
        button("Copy seed", ({ seed }) => copy(String(seed), "The seed is")),
        button("Copy all", ({ parameters }) => copy(parameters ?? "", "All that is known is")),
        button("Delete", (picture) => this.#delete(picture)),
      ),
      this.#facts,
    );
    document.body.append(this.#dialog);
    this.#zoom = new Zoom(this.#stage, (by) => this.#step(by));
    this.#dialog.addEventListener("keydown", (event) => this.#key(event));
  }

  get #picture() {
    return this.#collection.get(this.#id) ?? {};
  }

  // Shows one of several pictures.
  open(ids, id) {
    this.#ids = ids;
    this.#send.replaceChildren(sendMenu({}, { ...this.#context, sendTo: (_, where) => this.#sendTo(where) }));
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#show(id);
    this.#stage.closest("dialog").querySelector(".close").focus();
  }

  async #show(id) {
    this.#id = id;
    const turn = ++this.#turn;
    this.refresh();
    const picture = this.#picture;
    this.#facts.textContent = picture.parameters || "Nothing is known of how it was made.";
    try {
      const { file, video } = await this.#collection.files(id);
      if (turn !== this.#turn || !this.#dialog.open) return;
      this.#release();
      const blob = video ?? file;
      this.#url = URL.createObjectURL(blob);
      this.#shown = isPlayed(blob)
        ? make("video", { src: this.#url, controls: true, autoplay: true, loop: true, playsinline: true })
        : make("img", { src: this.#url, alt: picture.prompt ?? "", draggable: "false" });
      this.#shown.muted = true;
      this.#loopRow.hidden = !isPlayed(blob);
      this.#setLoop();
      this.#stage.replaceChildren(this.#shown);
      this.#zoom.reset();
    } catch (error) {
      if (turn === this.#turn) this.#stage.replaceChildren(make("p", { class: "hint" }, error.message));
    }
  }

  // Shows what has changed around the picture.
  refresh() {
    if (!this.#dialog.open) return;
    const { favourite } = this.#picture;
    this.#star.textContent = favourite ? "★ Favourite" : "☆ Favourite";
    this.#star.setAttribute("aria-pressed", String(Boolean(favourite)));
    this.#place.textContent = `${this.#ids.indexOf(this.#id) + 1} of ${this.#ids.length}`;
  }

  #step(by) {
    const at = this.#ids.indexOf(this.#id) + by;
    if (at >= 0 && at < this.#ids.length) this.#show(this.#ids[at]);
  }

  #setLoop() {
    if (this.#shown?.tagName === "VIDEO") this.#shown.loop = this.#loop.checked;
  }

  async #sendTo(where) {
    await this.#context.sendTo(await this.#sent(), where);
    this.#dialog.close();
  }

  // A picture with what it was made with; of a video the frame that is shown.
  async #sent() {
    const { parameters, seed } = this.#picture;
    const { file, video } = await this.#collection.files(this.#id);
    const blob = video ? await frameOf(this.#shown) : file;
    return { blob, name: fileName(this.#picture, blob), parameters, seed };
  }

  async #delete({ id }) {
    const at = this.#ids.indexOf(id);
    if (!(await this.#actions.remove([id]))) return;
    this.#ids = this.#ids.filter((each) => each !== id);
    const next = this.#ids[Math.min(at, this.#ids.length - 1)];
    if (next) this.#show(next);
    else this.#dialog.close();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, video, textarea")) return;
    const keys = {
      ArrowLeft: () => this.#step(-1),
      ArrowRight: () => this.#step(1),
      Home: () => this.#show(this.#ids[0]),
      End: () => this.#show(this.#ids.at(-1)),
      "+": () => this.#zoom.step(1.5),
      "-": () => this.#zoom.step(1 / 1.5),
      0: () => this.#zoom.reset(),
      f: () => this.#star.click(),
      Delete: () => this.#delete(this.#picture),
    };
    const run = keys[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  }

  #release() {
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = null;
  }

  #clear() {
    this.#turn++;
    this.#release();
    this.#shown = null;
    this.#stage.replaceChildren();
  }
}
