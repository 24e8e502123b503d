// What was asked for: requests of this browser, each once however often it was sent. Bounded; pinned ones stay.
import { disk } from "./disk.js";

const MOST = 300;
// Of pictures in requests, such as masks.
const MOST_BYTES = 256 * 2 ** 20;

const bytesOf = (value) => {
  if (value instanceof Blob) return value.size;
  if (value && typeof value === "object") return Object.values(value).reduce((sum, part) => sum + bytesOf(part), 0);
  return 0;
};

// The same for requests that differ in nothing but their seeds. Pictures are told apart by type and size.
const mark = (fields) => {
  const told = (name, value) => (value instanceof Blob ? `${value.type} ${value.size}` : value);
  const { seed: _, ...rest } = fields;
  return JSON.stringify(rest, told);
};

export class Past {
  #records = new Map();
  #changed = new Set();

  async open() {
    await this.#read();
    disk.onForeignChange((names) => {
      if (names.includes("history")) this.#read();
    });
  }

  async #read() {
    const records = await disk.all("history");
    this.#records = new Map(records.map((record) => [record.id, record]));
    this.#tell();
  }

  // { id, time, count, fields, pinned }: pinned ones first, then the newest.
  get all() {
    return [...this.#records.values()].sort((a, b) => Boolean(b.pinned) - Boolean(a.pinned) || b.time - a.time);
  }

  subscribe(listener) {
    this.#changed.add(listener);
    return () => this.#changed.delete(listener);
  }

  #tell() {
    for (const listener of this.#changed) listener();
  }

  async add(fields) {
    const own = mark(fields);
    const known = this.all.find((record) => mark(record.fields) === own);
    const time = Date.now();
    const record = known
      ? { ...known, time, count: known.count + 1, fields }
      : { id: `${time}-${Math.random()}`, time, count: 1, fields };
    this.#records.set(record.id, record);
    const free = this.all.filter(({ id, pinned }) => !pinned && id !== record.id);
    let count = this.#records.size;
    let bytes = this.all.reduce((sum, each) => sum + bytesOf(each.fields), 0);
    const out = [];
    for (const oldest of free.reverse()) {
      if (count <= MOST && bytes <= MOST_BYTES) break;
      out.push(oldest.id);
      count -= 1;
      bytes -= bytesOf(oldest.fields);
    }
    for (const id of out) this.#records.delete(id);
    await disk.put([["history", record]]);
    await disk.remove(out.map((id) => ["history", id]));
    this.#tell();
  }

  async pin(id, pinned) {
    const record = this.#records.get(id);
    if (!record) return;
    record.pinned = pinned;
    await disk.change("history", id, { pinned });
    this.#tell();
  }

  async remove(ids) {
    for (const id of ids) this.#records.delete(id);
    await disk.remove(ids.map((id) => ["history", id]));
    this.#tell();
  }
}
