// Generating for ever: as soon as the last job of the form has ended, the next one is sent.
import { make } from "../dom.js";
import { notice } from "../notices.js";

export class Forever {
  #context;
  #box = make("input", { type: "checkbox", id: "forever", onchange: () => this.#set(this.#box.checked) });
  node = make("label", { class: "row" }, this.#box, "Generate forever");
  // Counts the times that it was set: what an older one waits for is its business no more.
  #turn = 0;

  constructor(context) {
    this.#context = context;
  }

  #set(isOn) {
    const turn = ++this.#turn;
    if (!isOn) return;
    const { request } = this.#context;
    if (request.fields.seed !== undefined && request.fields.seed !== null) {
      const action = { label: "Random seeds", run: () => request.update({ seed: null }) };
      notice("The seed is fixed: the same picture will be made again and again.", { action });
    }
    this.#run(turn);
  }

  async #run(turn) {
    const { backend, generate } = this.#context;
    while (turn === this.#turn) {
      const before = new Set(backend.jobs.keys());
      let first = null;
      try {
        first = await generate();
      } catch (error) {
        return this.#stop(turn, error.message);
      }
      if (!first) return this.#stop(turn, "the request was refused");
      // The form may ask for several jobs in a row.
      const sent = [...backend.jobs.values()].filter(({ id }) => !before.has(id));
      const ended = await Promise.all(sent.map((job) => job.ended));
      const bad = ended.find(({ state }) => state !== "completed");
      if (bad) return this.#stop(turn, bad.error ?? `a job was ${bad.state}`);
    }
  }

  #stop(turn, reason) {
    if (turn !== this.#turn) return;
    this.#turn++;
    this.#box.checked = false;
    notice(`Generating forever has stopped: ${reason}.`, { isError: true });
  }
}
