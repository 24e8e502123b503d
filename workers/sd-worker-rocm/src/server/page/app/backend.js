// What the page knows of the server: whether it is ready, its models, what there is to choose from, and its jobs.
import { describe, follow, newJob } from "./jobs.js";
import { encoded } from "./pictures.js";
import { blob, get, health, post } from "./server.js";

const LOADING_MS = 1000;
const SILENT_MS = 3000;
const PREVIEW_EVERY = 2;

const of = (model) => (model ? `?model=${encodeURIComponent(model)}` : "");

export class Backend {
  // `GET /v1/choices` of the model that is chosen; null before it is known.
  choices = null;
  // Names; more than one where the server has several.
  models = [];
  device = "";
  // What keeps the server from answering, in words; empty if nothing does.
  problem = "";
  // Jobs that this page follows or has followed, by id.
  jobs = new Map();
  get = get;
  post = post;
  blob = blob;
  #listeners = { choices: new Set(), job: new Set(), state: new Set() };
  #model = null;
  #timer = null;
  #keyWanted;

  constructor({ keyWanted }) {
    this.#keyWanted = keyWanted;
  }

  // Calls `callback` for `choices`, `state` or (with the job) `job`; gives a function that ends it.
  subscribe(name, callback) {
    this.#listeners[name].add(callback);
    return () => this.#listeners[name].delete(callback);
  }

  #tell(name, value) {
    for (const listener of [...this.#listeners[name]]) listener(value);
  }

  #say(problem) {
    if (problem === this.problem) return;
    this.problem = problem;
    this.#tell("state");
  }

  // Asks how the server is, again and again until it is ready.
  async watch() {
    clearTimeout(this.#timer);
    let wait = LOADING_MS;
    try {
      const state = await health();
      if (state.isOk) {
        await this.refresh();
        this.#say("");
        return;
      }
      const { message } = state.error ?? {};
      this.#say(message ?? `The server is ${state.status ?? "not ready"}.`);
    } catch (error) {
      if (error.status === 401) {
        this.#say("The server asks for a key.");
        this.#keyWanted(error.message);
        return;
      }
      this.#say(error.message);
      wait = SILENT_MS;
    }
    this.#timer = setTimeout(() => this.watch(), wait);
  }

  // Reads what the server has anew.
  async refresh() {
    const [info, { data }] = await Promise.all([get("info"), get("v1/models")]);
    const told = (device) => `${device.name} ${device.description ?? ""}${device.lost ? " (lost)" : ""}`.trim();
    this.device = (info.devices ?? []).map(told).join(", ") || (info.device ?? "");
    this.models = data.filter(({ parent }) => !parent).map(({ id }) => id);
    const known = this.models.includes(this.#model) ? this.#model : null;
    this.choices = await get(`v1/choices${of(known)}`);
    this.#tell("choices");
  }

  // The model whose choices are read next.
  prefer(model) {
    this.#model = model ?? null;
  }

  // Another model's choices. It may have to be loaded first.
  async choose(model) {
    this.prefer(model);
    this.#say(`Waiting for ${model} …`);
    await this.watch();
  }

  // Puts a job in line. Throws what the server refuses, with the field that it names.
  async submit(fields) {
    const body = { preview_every: PREVIEW_EVERY, ...fields };
    const { job_id: id } = await post("v1/jobs", await encoded(body));
    return this.follow(id, fields);
  }

  // Follows a job of which the id is known.
  follow(id, fields = {}) {
    const known = this.jobs.get(id);
    if (known) return known;
    const job = newJob(id, fields);
    this.jobs.set(id, job);
    const changed = () => this.#tell("job", job);
    changed();
    follow(job, { changed, problem: (text) => this.#say(text) }).catch((error) => {
      Object.assign(job, { state: "failed", error: error.message });
      changed();
      job.end();
    });
    return job;
  }

  async cancel(id) {
    const told = await post(`v1/jobs/${encodeURIComponent(id)}/cancel`, {});
    const job = this.jobs.get(id);
    // A running job ends within a step; its stream tells so.
    if (job && told.state === "cancelled") describe(job, told);
    return told;
  }

  // All jobs that the server knows, as it describes them.
  async list() {
    return (await get("v1/jobs")).jobs;
  }
}
