// The last jobs beside the form: progress and preview while they run, then their pictures, and what can be done with them.
import { $, copyText, make } from "./dom.js";
import { iconButton } from "./icons.js";
import { FINAL } from "./jobs.js";
import { announce, notice } from "./notices.js";

// Jobs that are shown; the gallery has all.
const SHOWN = 8;

export const PLACES = [
  ["text", "the form (settings)"],
  ["image", "Image to image"],
  ["inpaint", "Inpaint"],
  ["first", "First frame"],
  ["key_frame", "A frame between"],
  ["last", "Last frame"],
  ["control", "ControlNet"],
  ["reference", "References"],
  ["upscale", "Upscale"],
  ["preprocess", "Preprocess"],
  ["info", "PNG info"],
];

// Chooses where a picture goes.
export const sendMenu = (picture, { sendTo, canSend }) => {
  const options = PLACES.filter(([where]) => canSend(where)).map(([where, label]) => make("option", { value: where }, label));
  const select = make("select", { class: "send", "aria-label": "Send to" }, make("option", { value: "" }, "Send to…"), options);
  select.addEventListener("change", () => {
    const where = select.value;
    select.value = "";
    if (where) sendTo(picture, where).catch((error) => notice(error.message, { isError: true }));
  });
  return select;
};

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const seconds = (number) => (number >= 90 ? `${Math.round(number / 60)} min` : `${Math.ceil(number)} s`);

// What a job is doing, in words.
export const stateOf = (job) => {
  if (job.isCancelling && !FINAL.includes(job.state)) return "cancelling, at the end of this step";
  const left = job.secondsLeft === null ? "" : `, ${seconds(job.secondsLeft)} left`;
  if (job.state === "queued") return job.position > 0 ? `waiting, ${job.position} before` : "waiting";
  if (job.state === "running") return `step ${job.step} of ${job.total}${left}`;
  if (job.state === "failed") return job.error ?? "failed";
  if (job.state === "cancelled") return "cancelled";
  return `${job.images.length} ${job.images.length === 1 ? "picture" : "pictures"}`;
};

export class Results {
  #context;
  #views = new Map();

  constructor(context) {
    this.#context = context;
    context.backend.subscribe("job", (job) => this.#show(job));
    this.#showEmpty();
  }

  // Shows a job from now on.
  add(job) {
    const parts = {
      status: make("p", { class: "status", role: "status" }),
      bar: make("progress", { max: 1, "aria-label": "Progress" }),
      preview: make("img", { class: "preview", alt: "Preview" }),
      pictures: make("div", { class: "pictures" }),
    };
    const frame = make("div", { class: "frame" }, parts.preview);
    const node = make("article", { class: "job", "data-job": job.id }, parts.status, parts.bar, frame, parts.pictures);
    const { defaults } = this.#context.backend.choices;
    const size = [job.fields.width ?? defaults.width, job.fields.height ?? defaults.height];
    // The place is taken before there is a picture, so that nothing moves.
    frame.style.aspectRatio = `${size[0]} / ${size[1]}`;
    frame.style.maxWidth = `min(100%, ${Math.max(size[0], 256)}px)`;
    this.#views.set(job.id, { node, frame, ...parts, shown: null });
    $("results").querySelector(".empty")?.remove();
    $("results").prepend(node);
    for (const [id, view] of this.#views) {
      if (this.#views.size <= SHOWN) break;
      view.node.remove();
      this.#views.delete(id);
    }
    this.#show(job);
  }

  #showEmpty() {
    $("results").replaceChildren(make("p", { class: "empty hint" }, "What you generate stands here. All pictures are in the gallery."));
  }

  #show(job) {
    const view = this.#views.get(job.id);
    if (!view) return;
    const isFinal = FINAL.includes(job.state);
    const isMade = job.state === "completed";
    view.status.textContent = stateOf(job);
    view.status.classList.toggle("error", job.state === "failed");
    view.bar.hidden = isFinal;
    if (job.total > 0) view.bar.value = job.step / job.total;
    else view.bar.removeAttribute("value");
    view.frame.hidden = isFinal;
    view.preview.hidden = !job.preview;
    if (job.preview && !isFinal) view.preview.src = job.preview;
    if (!isFinal || view.shown === job.state) return;
    view.shown = job.state;
    if (isMade) view.pictures.replaceChildren(...job.images.map((picture) => this.#figure(picture)));
    announce(isMade ? `Done: ${stateOf(job)}` : `The job ${job.state}. ${job.error ?? ""}`);
  }

  #figure(picture) {
    const { request } = this.#context;
    const alt = picture.parameters.split("\n")[0] || "A picture without a prompt";
    const shown = picture.videoUrl?.includes(".mp4")
      ? make("video", { src: picture.videoUrl, controls: true, loop: true, autoplay: !isCalm(), muted: true, playsinline: true, "aria-label": alt })
      : make("img", { src: picture.videoUrl ?? picture.url, alt });
    const open = make("a", { href: picture.videoUrl ?? picture.url, target: "_blank", rel: "noopener", title: "Open in a tab of its own" }, shown);
    const tools = make(
      "div",
      { class: "row" },
      sendMenu(picture, this.#context),
      iconButton("retry", `Use the seed ${picture.seed}`, () => request.update({ seed: picture.seed })),
      iconButton("copy", "Copy the parameters", () => copyText(picture.parameters).then(() => announce("Copied"))),
      make("a", { class: "button small", href: picture.videoUrl ?? picture.url, download: "" }, "Save"),
    );
    const caption = make("figcaption", {}, make("span", { class: "seed" }, String(picture.seed)), tools);
    return make("figure", { "data-seed": picture.seed }, picture.videoUrl ? shown : open, caption);
  }
}
