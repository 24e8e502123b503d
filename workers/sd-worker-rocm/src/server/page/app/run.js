// Puts the open pane's request in line, as often as is asked for, and cancels what this page has in line.
import { FINAL } from "./jobs.js";
import { blobOf } from "./pictures.js";
import { ServerError } from "./server.js";

export class Run {
  // Jobs in a row.
  count = 1;
  // The last picture that was made here.
  #last = null;
  #context;
  #callbacks;

  // `callbacks`: refused(error), submitted(job).
  constructor(context, callbacks) {
    this.#context = context;
    this.#callbacks = callbacks;
  }

  // The first job; null if the server refused it.
  async generate() {
    const { backend, request } = this.#context;
    let first = null;
    try {
      const body = await request.build();
      for (let i = 0; i < this.count; i += 1) {
        const job = await backend.submit(withSeed(body, i));
        first ??= job;
        job.ended.then(({ images }) => {
          this.#last = images.at(-1) ?? this.#last;
        });
        this.#callbacks.submitted(job);
      }
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      this.#callbacks.refused(error);
    }
    return first;
  }

  get lastSeed() {
    return this.#last?.seed ?? null;
  }

  // The last picture that was made here, or null.
  async lastPicture() {
    return this.#last && blobOf(this.#last);
  }

  // The jobs of this page that have not ended, the oldest first.
  get open() {
    return [...this.#context.backend.jobs.values()].filter(({ state }) => !FINAL.includes(state));
  }

  // Cancels the oldest of them: the one that runs, if one does.
  async cancel() {
    const [job] = this.open;
    if (!job || job.isCancelling) return;
    job.isCancelling = true;
    try {
      await this.#context.backend.cancel(job.id);
    } catch (error) {
      job.isCancelling = false;
      this.#callbacks.refused(error);
    }
  }
}

// The seed that follows on those of the jobs before, where one is given.
const withSeed = (body, i) => {
  if (i === 0 || body.seed === undefined) return body;
  return { ...body, seed: body.seed + i * (body.batch ?? 1) };
};
