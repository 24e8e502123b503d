// The jobs of the server, and which of them are this browser's. Own jobs are known by id, so that they are found again
// after a reload, and so that one that a restarted server does not know is told rather than lost silently.
import { disk } from "../disk.js";

const BUSY_MS = 1000;
const IDLE_MS = 5000;
// Own jobs that are remembered, the ended ones included.
const MOST_OWN = 400;
const ENDED = ["completed", "failed", "cancelled", "lost"];

export const isEnded = ({ state }) => ENDED.includes(state);

const LOST =
  "The server does not know this job any more: it was started anew without --queue-dir, or the job ended longer ago than jobs are kept.";

export class Jobs {
  // Of the server, in the order in which they are worked on.
  listed = [];
  // How long the server keeps what has ended, and whether on a disk; null before it is known.
  kept = null;
  // Why the server does not answer, or "".
  problem = "";
  #own = new Map();
  #backend;
  #callbacks;
  #changed = new Set();
  #timer = null;
  #asking = null;
  #quiet = new WeakSet();
  #writing = new Set();

  // `callbacks`: listed(jobs), submitted(fields) of own requests that stand for themselves, ended(job), failed(error).
  constructor(backend, callbacks) {
    this.#backend = backend;
    this.#callbacks = callbacks;
  }

  async open() {
    await this.#read();
    disk.onForeignChange((names) => {
      if (names.includes("jobs")) this.#read().then(() => this.#tell());
    });
    this.#backend.subscribe("job", (job) => this.#follow(job).catch((error) => this.#callbacks.failed(error)));
    this.#backend.subscribe("state", () => this.ask());
    document.addEventListener("visibilitychange", () => this.ask());
    // What was under way when the page was closed is watched again.
    for (const { id, fields } of this.own.filter((job) => !isEnded(job))) {
      this.#backend.follow(id, fields ?? {});
    }
    await this.ask();
  }

  async #read() {
    const records = await disk.all("jobs");
    // What is being written is not there yet.
    const fresh = [...this.#own.values()].filter(({ id }) => this.#writing.has(id));
    this.#own = new Map([...records, ...fresh].map((record) => [record.id, record]));
  }

  // This browser's, oldest first: { id, time, state, error, fields, grid }.
  get own() {
    return [...this.#own.values()].sort((a, b) => a.time - b.time);
  }

  isMine(id) {
    return this.#own.has(id);
  }

  get(id) {
    return this.#own.get(id);
  }

  // Own jobs that wait or run.
  get active() {
    return this.own.filter((job) => !isEnded(job));
  }

  subscribe(listener) {
    this.#changed.add(listener);
    return () => this.#changed.delete(listener);
  }

  #tell() {
    for (const listener of this.#changed) listener();
  }

  // Submits a body that is part of something larger: `grid` names it.
  async submit(body, grid) {
    this.#quiet.add(body);
    const job = await this.#backend.submit(body);
    await this.#record(job, { grid, fields: body });
    return job;
  }

  // What the page's own following says of a job.
  async #follow(job) {
    const known = this.#own.get(job.id);
    if (!known) await this.#record(job, { fields: job.fields });
    else if (known.state !== job.state) await this.#change(job.id, { state: job.state, error: job.error ?? null });
    this.#tell();
    if (known && isEnded(job) && !isEnded(known)) this.ask();
  }

  async #record(job, { grid = null, fields }) {
    const known = this.#own.get(job.id);
    if (known) {
      if (grid) await this.#change(job.id, { grid });
      return;
    }
    const record = { id: job.id, time: Date.now(), state: job.state, error: job.error ?? null, fields, grid };
    this.#own.set(job.id, record);
    if (!grid && !this.#quiet.has(fields)) this.#callbacks.submitted(fields);
    this.#writing.add(job.id);
    await disk.put([["jobs", record]]).finally(() => this.#writing.delete(job.id));
    const surplus = this.own.filter(isEnded).slice(0, Math.max(0, this.#own.size - MOST_OWN));
    for (const { id } of surplus) this.#own.delete(id);
    await disk.remove(surplus.map(({ id }) => ["jobs", id]));
    this.ask();
  }

  async #change(id, fields) {
    const record = this.#own.get(id);
    if (!record) return;
    const wasEnded = isEnded(record);
    Object.assign(record, fields);
    // The pictures of a request that went well are in the history, if anywhere.
    if (record.state === "completed") {
      record.fields = null;
      fields = { ...fields, fields: null };
    }
    await disk.change("jobs", id, fields);
    if (!wasEnded && isEnded(record)) this.#callbacks.ended(record);
  }

  // Asks the server for its list now, and again in a while.
  ask() {
    clearTimeout(this.#timer);
    this.#asking ??= this.#asked().finally(() => {
      this.#asking = null;
      const isBusy = this.active.length > 0 || this.listed.some((job) => !isEnded(job));
      this.#timer = setTimeout(() => this.ask(), isBusy && !document.hidden ? BUSY_MS : IDLE_MS);
    });
    return this.#asking;
  }

  async #asked() {
    // A job that is submitted meanwhile may not be in the answer.
    const before = new Set(this.active.map(({ id }) => id));
    const ended = new Set(this.own.filter(isEnded).map(({ id }) => id));
    try {
      const { jobs, kept } = await this.#backend.get("v1/jobs");
      this.problem = "";
      this.kept = kept ?? null;
      const rank = ({ state, position }) => (state === "running" ? -1 : state === "queued" ? position : Infinity);
      this.listed = jobs.sort((a, b) => rank(a) - rank(b) || (b.finished ?? 0) - (a.finished ?? 0));
    } catch (error) {
      this.problem = error.status === 401 ? "" : error.message;
      return this.#tell();
    }
    const listed = new Map(this.listed.map((job) => [job.id, job]));
    for (const { id, state } of this.active) {
      const job = listed.get(id);
      if (job && job.state !== state) await this.#change(id, { state: job.state, error: job.error?.message ?? null });
      else if (!job && before.has(id)) await this.#change(id, { state: "lost", error: LOST });
    }
    // A server that was stopped says that its jobs are cancelled; they go on with the next one, if it keeps them, and may
    // have come to their end there meanwhile.
    for (const job of this.listed.filter(({ id, state }) => ended.has(id) && this.#own.get(id)?.state !== state))
      await this.#reopen(job);
    this.#tell();
    this.#callbacks.listed(this.listed);
  }

  async #reopen({ id, state }) {
    await this.#change(id, { state, error: null });
    this.#backend.jobs.delete(id);
    this.#backend.follow(id, this.#own.get(id).fields ?? {});
  }

  async cancel(id) {
    await this.#backend.cancel(id);
    await this.ask();
  }

  // Puts a waiting job at a place among those that wait, 0 the next one.
  async move(id, place) {
    await this.#backend.post(`v1/jobs/${encodeURIComponent(id)}/move`, { place });
    await this.ask();
  }

  // Takes an ended job out of the list, and off the server.
  async forget(id) {
    const isListed = this.listed.some((job) => job.id === id);
    if (isListed) await this.#backend.post(`v1/jobs/${encodeURIComponent(id)}/forget`, {});
    await this.#drop(id);
    await this.ask();
  }

  async #drop(id) {
    this.#own.delete(id);
    await disk.remove([["jobs", id]]);
    this.#tell();
  }

  // Submits a job that did not come to its end once more.
  async again(id) {
    const record = this.#own.get(id);
    if (!record?.fields) throw new Error("What was asked for is not known any more.");
    const job = await this.submit(record.fields, record.grid);
    await this.#drop(id);
    return job;
  }
}
