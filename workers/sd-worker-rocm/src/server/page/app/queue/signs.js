// Signs of progress for those who look elsewhere: the title of the tab, and notifications of the system.
import { make } from "../dom.js";
import { notice } from "../notices.js";
import { local } from "../small-store.js";

const WANTED = "notifications";

// What stands before the title, which may have been set anew by others.
const OURS = /^(?:\(\d+\) )?(?:\d+ % · |… · )/;

const WORDS = { completed: "The pictures are done", failed: "A job has failed", lost: "A job is lost" };

export class Signs {
  #jobs;
  #backend;
  #box = make("input", { type: "checkbox", id: "notify", onchange: () => this.#set(this.#box.checked) });
  node = make("label", { class: "row" }, this.#box, "Notify me at the end");

  constructor({ backend }, jobs) {
    this.#jobs = jobs;
    this.#backend = backend;
    this.node.hidden = !("Notification" in globalThis);
    this.#box.checked = local.get(WANTED) === "yes" && globalThis.Notification?.permission === "granted";
    backend.subscribe("job", () => this.#show());
    jobs.subscribe(() => this.#show());
  }

  async #set(isOn) {
    if (isOn && (await Notification.requestPermission()) !== "granted") {
      this.#box.checked = false;
      notice("The browser does not let this page notify. It can be allowed in the browser's settings of this page.", {
        isError: true,
      });
      return;
    }
    local.set(WANTED, isOn ? "yes" : null);
  }

  #show() {
    const active = this.#jobs.active;
    const running = active
      .map(({ id }) => this.#backend.jobs.get(id))
      .filter((job) => job?.state === "running" && job.total);
    const [first] = running;
    const percent = first ? `${Math.floor((100 * first.step) / first.total)} % · ` : active.length ? "… · " : "";
    const more = first && active.length > 1 ? `(${active.length}) ` : "";
    const title = `${more}${percent}${document.title.replace(OURS, "")}`;
    if (title !== document.title) document.title = title;
  }

  // An own job has ended: told to those who do not see it, once nothing else of theirs is under way.
  ended({ state, error, fields }) {
    if (!this.#box.checked || !document.hidden || !WORDS[state]) return;
    if (state === "completed" && this.#jobs.active.length) return;
    const sign = new Notification(WORDS[state], { body: (error ?? fields?.prompt ?? "").slice(0, 200), tag: "images" });
    sign.addEventListener("click", () => window.focus());
    sign.addEventListener("show", () => setTimeout(() => sign.close(), 20_000));
  }
}
