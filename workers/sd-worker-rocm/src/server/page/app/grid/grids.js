// Grids: one request in all combinations of the values of up to three axes. Each combination is a cell, which is a job;
// a cell that fails does not stop the others. A grid goes on after a reload where it was.
import { disk } from "../disk.js";
import { notice } from "../notices.js";
import { isEnded } from "../queue/jobs.js";
import { axes, nameOf } from "./axes.js";

// Cells of one grid.
export const MOST_CELLS = 500;
// Grids that are remembered; the oldest go first. Their pictures are the gallery's.
const MOST_GRIDS = 20;
// Jobs of a grid that are in line at a time, so that others have their turn.
const IN_LINE = 3;
const AGAIN_MS = 2000;

const bodyId = (id) => `${id} body`;
const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// All combinations; the first axis changes fastest.
const combinations = (counts) => {
  const total = counts.reduce((product, count) => product * count, 1);
  return Array.from({ length: total }, (_, number) => {
    let rest = number;
    return counts.map((count) => {
      const at = rest % count;
      rest = Math.floor(rest / count);
      return at;
    });
  });
};

// What somebody has typed, read: [{ axis, values }]. `error(row, message)` is told what cannot be read.
export const readAxes = (rows, known, error) => {
  const found = [];
  for (const [row, { id, text }] of rows.entries()) {
    if (!id) continue;
    const axis = known.find((each) => each.id === id);
    try {
      if (!axis) throw new Error("This cannot be varied any more.");
      if (found.some((each) => each.axis.id === id && id !== "other")) throw new Error("This is another axis already.");
      const values = axis.read(text);
      if (!values.length) throw new Error(`Values are missing: ${axis.hint}`);
      found.push({ axis, values });
    } catch (reason) {
      error(row, reason.message);
    }
  }
  return found;
};

export class Grids {
  #grids = new Map();
  // Of a grid, what is called when one of its jobs has ended.
  #running = new Map();
  // The grids that this tab works on.
  #held = new Set();
  #context;
  #jobs;
  #changed = new Set();

  constructor(context, { jobs, onEnd }) {
    this.#context = context;
    this.#jobs = jobs;
    onEnd((job) => job.grid && this.#ended(job).catch((error) => notice(error.message, { isError: true })));
    disk.onForeignChange((names) => names.includes("grids") && this.#readForeign());
  }

  async open() {
    for (const grid of (await disk.all("grids")).filter(({ cells }) => cells)) {
      this.#grids.set(grid.id, grid);
      if (grid.state === "running") this.#resume(grid);
      else this.#settleEnded(grid);
    }
  }

  // What other tabs have done: the one that works on a grid writes its cells, the others only that it is to end.
  async #readForeign() {
    const records = (await disk.all("grids")).filter(({ cells }) => cells);
    const there = new Set(records.map(({ id }) => id));
    for (const record of records) {
      const known = this.#grids.get(record.id);
      if (!known) {
        this.#grids.set(record.id, record);
        if (record.state === "running") this.#resume(record);
      } else if (!this.#held.has(record.id)) this.#adopt(known, record);
      else if (record.isUnwanted && known.state === "running") await this.cancel(known);
    }
    for (const grid of this.all.filter(({ id }) => !there.has(id))) {
      if (this.#held.has(grid.id)) await this.cancel(grid);
      this.#grids.delete(grid.id);
    }
    this.#tell(null);
  }

  #adopt(grid, { state, cells }) {
    grid.state = state;
    grid.cells.forEach((cell, at) => Object.assign(cell, cells[at]));
  }

  // Cells whose jobs ended while nobody looked.
  #settleEnded(grid) {
    for (const cell of grid.cells.filter(({ job, state }) => job && !state)) {
      const job = this.#jobs.get(cell.job);
      if (!job) this.#settle(cell, { state: "lost", error: "The job is not known any more." });
      else if (isEnded(job)) this.#settle(cell, job);
    }
  }

  // Newest first: { id, time, title, axes: [{ id, label, values, names }], cells: [{ at, job, state, error }], state }.
  get all() {
    return [...this.#grids.values()].sort((a, b) => b.time - a.time);
  }

  subscribe(listener) {
    this.#changed.add(listener);
  }

  #tell(grid) {
    for (const listener of this.#changed) listener(grid);
  }

  // Begins a grid of a body in line; `chosen` is what `readAxes` gives. Throws what the axes cannot be used with.
  async start(body, chosen) {
    const base = { ...body, batch: 1 };
    // The same noise in all cells, unless seeds are an axis.
    if (base.seed === undefined || base.seed === null || base.seed < 0)
      base.seed = crypto.getRandomValues(new Uint32Array(1))[0];
    for (const { axis, values } of chosen) {
      const reason = axis.refusal?.(base, values);
      if (reason) throw new Error(`${axis.label}: ${reason}.`);
    }
    const id = `grid-${Date.now()}-${base.seed}`;
    const grid = {
      id,
      time: Date.now(),
      state: "running",
      title: base.prompt ?? "",
      axes: chosen.map(({ axis, values }) => ({
        id: axis.id,
        label: axis.label,
        values,
        names: values.map((value) => nameOf(axis, value)),
      })),
      cells: combinations(chosen.map(({ values }) => values.length)).map((at) => ({
        at,
        job: null,
        state: null,
        error: null,
      })),
    };
    this.#grids.set(id, grid);
    const old = this.all.filter(({ state }) => state !== "running").slice(MOST_GRIDS - 1);
    for (const each of old) this.#grids.delete(each.id);
    await disk.put([
      ["grids", grid],
      ["grids", { id: bodyId(id), body: base }],
    ]);
    await disk.remove(
      old.flatMap((each) => [
        ["grids", each.id],
        ["grids", bodyId(each.id)],
      ]),
    );
    this.#tell(grid);
    this.#resume(grid);
    return grid;
  }

  // Goes on with a grid, in one tab at a time where the browser can tell tabs apart: the next one when that is closed.
  #resume(grid) {
    const run = async () => {
      const fresh = await disk.get("grids", grid.id);
      if (fresh?.state !== "running") return;
      this.#held.add(grid.id);
      this.#adopt(grid, fresh);
      try {
        this.#settleEnded(grid);
        await this.#run(grid);
      } catch (error) {
        await this.#broken(grid, error);
      } finally {
        this.#held.delete(grid.id);
      }
    };
    const done = navigator.locks ? navigator.locks.request(grid.id, run) : run();
    done.catch((error) => notice(error.message, { isError: true }));
  }

  async #broken(grid, error) {
    for (const cell of grid.cells)
      if (!cell.job && !cell.state) Object.assign(cell, { state: "failed", error: error.message });
    await this.#save(grid);
  }

  async #run(grid) {
    const known = await disk.get("grids", bodyId(grid.id));
    if (!known) throw new Error("What was asked for is not known any more.");
    const { backend } = this.#context;
    const found = axes({ choices: backend.choices, models: backend.models, fields: known.body });
    const bodyOf = ({ at }) => {
      const body = { ...known.body };
      for (const [number, own] of grid.axes.entries()) {
        const axis = found.find(({ id }) => id === own.id);
        if (!axis) throw new Error(`${own.label} cannot be varied any more.`);
        axis.set(body, own.values[at[number]], own.values);
      }
      return body;
    };
    for (const cell of grid.cells) {
      if (cell.job || cell.state) continue;
      while (grid.state === "running" && this.#inLine(grid) >= IN_LINE) await this.#oneEnds(grid);
      if (grid.state !== "running") break;
      await this.#submit(grid, cell, bodyOf);
    }
    while (this.#inLine(grid)) await this.#oneEnds(grid);
    await this.#save(grid);
  }

  #inLine(grid) {
    return grid.cells.filter(({ job, state }) => job && !state).length;
  }

  #oneEnds(grid) {
    return new Promise((resolve) => this.#running.set(grid.id, resolve));
  }

  async #submit(grid, cell, bodyOf) {
    while (grid.state === "running") {
      try {
        const job = await this.#jobs.submit(bodyOf(cell), grid.id);
        cell.job = job.id;
        // It may have ended before it was known whose it is.
        const own = this.#jobs.get(job.id);
        if (own && isEnded(own)) this.#settle(cell, own);
        break;
      } catch (error) {
        // The line is full, or the server is away for a while.
        const isLater = [0, 429, 503].includes(error.status);
        if (!isLater) {
          Object.assign(cell, { state: "failed", error: error.message });
          break;
        }
        await wait(AGAIN_MS);
      }
    }
    await this.#save(grid);
  }

  #settle(cell, { state, error }) {
    Object.assign(cell, { state, error: state === "completed" ? null : (error ?? state) });
  }

  async #ended(job) {
    const grid = this.#grids.get(job.grid);
    if (grid?.state === "running" && !this.#held.has(grid.id)) return;
    // One that was cancelled with its server may have gone on with the next.
    const cell = grid?.cells.find((each) => each.job === job.id && each.state !== "completed");
    if (!cell) return;
    this.#settle(cell, job);
    await this.#save(grid);
    this.#running.get(grid.id)?.();
  }

  async #save(grid) {
    if (grid.state === "running" && grid.cells.every(({ state }) => state)) grid.state = "done";
    // It may have been deleted meanwhile.
    if (this.#grids.has(grid.id)) await disk.change("grids", grid.id, { cells: grid.cells, state: grid.state });
    this.#tell(grid);
  }

  // Sends no more cells, and cancels those that are in line.
  async cancel(grid) {
    // The tab that works on it hears of it.
    if (!this.#held.has(grid.id)) return disk.change("grids", grid.id, { isUnwanted: true });
    grid.state = "cancelled";
    for (const cell of grid.cells)
      if (!cell.job && !cell.state) Object.assign(cell, { state: "cancelled", error: "not begun" });
    await this.#save(grid);
    const inLine = grid.cells.filter(({ job, state }) => job && !state);
    await Promise.all(inLine.map(({ job }) => this.#jobs.cancel(job).catch(() => {})));
    this.#running.get(grid.id)?.();
  }

  // Forgets a grid. Its pictures stay in the gallery.
  async remove(grid) {
    if (grid.state === "running") await this.cancel(grid);
    this.#grids.delete(grid.id);
    await disk.remove([
      ["grids", grid.id],
      ["grids", bodyId(grid.id)],
    ]);
    this.#tell(grid);
  }
}
