// The request that is being edited: a plain object with the field names of `/v1/jobs`, without what is left to the model.
import { withoutBlobs } from "./pictures.js";
import { local } from "./small-store.js";

const KEPT = "request";

const isEmpty = (value) =>
  value === null ||
  value === undefined ||
  (Array.isArray(value) && value.length === 0) ||
  (typeof value === "object" && !(value instanceof Blob) && !Array.isArray(value) && Object.keys(value).length === 0);

export class Request {
  #fields = Object.freeze({});
  #listeners = new Set();
  // What the open pane adds to a job: a function that gives a promise of fields.
  #composer = async () => ({ operation: "image_generation" });

  constructor() {
    const kept = local.json(KEPT, {});
    if (kept && typeof kept === "object" && !Array.isArray(kept)) this.#fields = Object.freeze(kept);
  }

  // What is asked for; not to be changed in place. Pictures are blobs.
  get fields() {
    return this.#fields;
  }

  // Sets fields; null and undefined take one out.
  update(fields) {
    const next = { ...this.#fields };
    const names = [];
    for (const [name, value] of Object.entries(fields)) {
      const wanted = isEmpty(value) ? undefined : value;
      if (Object.is(next[name], wanted)) continue;
      if (wanted === undefined) delete next[name];
      else next[name] = wanted;
      names.push(name);
    }
    if (names.length === 0) return;
    this.#fields = Object.freeze(next);
    local.set(KEPT, JSON.stringify(withoutBlobs(next)));
    for (const listener of [...this.#listeners]) listener(names);
  }

  // Sets these fields and takes all others out.
  replace(fields) {
    const none = Object.fromEntries(Object.keys(this.#fields).map((name) => [name, null]));
    this.update({ ...none, ...fields });
  }

  // The value of a field, or of a part of it: `highres.scale`.
  get(path) {
    return path.split(".").reduce((value, name) => value?.[name], this.#fields);
  }

  set(path, value) {
    const [name, part] = path.split(".");
    if (part === undefined) return this.update({ [name]: value });
    const whole = { ...this.#fields[name] };
    if (isEmpty(value)) delete whole[part];
    else whole[part] = value;
    return this.update({ [name]: whole });
  }

  // Calls `callback(names)` after each change; gives a function that ends it.
  subscribe(callback) {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  compose(composer) {
    this.#composer = composer;
  }

  // The whole body of a job of the open pane; pictures are blobs.
  async build() {
    const fields = { prompt: "", ...this.#fields };
    return { ...fields, ...(await this.#composer(fields)) };
  }
}
