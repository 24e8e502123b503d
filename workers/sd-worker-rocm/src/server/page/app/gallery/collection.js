// The pictures that are known: those that this browser keeps, and those that the server still has of anybody's jobs.
// Bounded: the oldest that are no favourites go first, and it is told.
import { disk } from "../disk.js";

const MOST = { pictures: 1000, bytes: 2 * 2 ** 30 };
// Of what the browser gives to this page.
const SHARE = 0.5;
// Names of deleted pictures that are remembered, so that the server's list does not bring them back.
const MOST_GONE = 4000;
const SMALL_SIDE = 320;

// A small one for the gallery; null where the browser cannot read it.
const small = async (blob) => {
  try {
    const picture = await createImageBitmap(blob);
    const scale = Math.min(1, SMALL_SIDE / Math.max(picture.width, picture.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(picture.width * scale));
    canvas.height = Math.max(1, Math.round(picture.height * scale));
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const size = { width: picture.width, height: picture.height };
    picture.close();
    const type = scale < 1 ? "image/webp" : "image/png";
    const thumb = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.85));
    return thumb && { ...size, thumb };
  } catch {
    return null;
  }
};

const bytesOf = ({ bytes }) => bytes ?? 0;

// The first line of what a picture says that it was made with, up to the settings: the prompt.
export const promptOf = (parameters) => {
  const lines = (parameters ?? "").split("\n");
  const end = lines.findIndex((line) => line.startsWith("Negative prompt: ") || /^Steps: \d+, /.test(line));
  return (end < 0 ? lines : lines.slice(0, end)).join("\n").trim();
};

export class Collection {
  // By id, `JOB-INDEX`. Of those that are not `kept` the server has the only copy.
  #pictures = new Map();
  #gone = new Map();
  #adding = new Set();
  // What could not be copied, and is not tried again before the page is.
  #refused = new Set();
  #backend;
  #callbacks;
  #changed = new Set();
  #most;

  // `callbacks`: told(text, isError), dropped(job): none of its pictures is wanted any more.
  constructor(backend, callbacks, most = MOST) {
    this.#backend = backend;
    this.#callbacks = callbacks;
    this.#most = { ...most };
    disk.onForeignChange((names) => {
      if (names.includes("pictures") || names.includes("gone")) this.#read();
    });
  }

  async open() {
    const { quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
    if (quota) this.#most.bytes = Math.min(this.#most.bytes, quota * SHARE);
    await this.#read();
  }

  async #read() {
    const [pictures, gone] = [await disk.all("pictures"), await disk.all("gone")];
    const served = [...this.#pictures.values()].filter(({ kept }) => !kept);
    const isGone = new Set(gone.map(({ id }) => id));
    this.#gone = new Map(gone.map((record) => [record.id, record.time]));
    this.#pictures = new Map(
      [...served, ...pictures].filter(({ id }) => !isGone.has(id)).map((picture) => [picture.id, picture]),
    );
    this.#tell();
  }

  // `listener()` hears of every change.
  subscribe(listener) {
    this.#changed.add(listener);
    return () => this.#changed.delete(listener);
  }

  #tell() {
    for (const listener of this.#changed) listener();
  }

  // All, newest first.
  get all() {
    return [...this.#pictures.values()].sort((a, b) => b.time - a.time || b.index - a.index);
  }

  get(id) {
    return this.#pictures.get(id);
  }

  // Bytes that are kept here, and how many may be.
  get usage() {
    const kept = [...this.#pictures.values()].filter((picture) => picture.kept);
    return {
      pictures: kept.length,
      bytes: kept.reduce((sum, each) => sum + bytesOf(each), 0),
      mostPictures: this.#most.pictures,
      mostBytes: this.#most.bytes,
    };
  }

  // Takes what the server's list has: own pictures are kept, others are shown as long as the server has them.
  async takeFromServer(jobs, isMine) {
    const listed = new Set();
    const mine = [];
    let changed = false;
    for (const job of jobs) {
      for (const [index, image] of (job.images ?? []).entries()) {
        const id = `${job.id}-${index}`;
        listed.add(id);
        const known = this.#pictures.get(id);
        if (known)
          Object.assign(known, { url: image.url, videoUrl: image.video_url, mine: known.mine || isMine(job.id) });
        if (this.#gone.has(id) || known?.kept) continue;
        if (!known) {
          this.#pictures.set(id, {
            id,
            job: job.id,
            index,
            kept: false,
            mine: isMine(job.id),
            time: (job.finished ?? job.created) * 1000,
            url: image.url,
            videoUrl: image.video_url,
            seed: image.seed,
            parameters: image.parameters,
            prompt: promptOf(image.parameters),
          });
          changed = true;
        }
        if (isMine(job.id) && !this.#refused.has(id)) mine.push(id);
      }
    }
    for (const [id, picture] of this.#pictures) {
      // Its own reading goes on with what it has.
      if (!picture.kept && !listed.has(id) && !this.#adding.has(id)) changed = this.#pictures.delete(id);
    }
    if (changed) this.#tell();
    for (const id of mine) await this.keep(id).catch((error) => this.#failed(id, error));
  }

  #failed(id, error) {
    // A server that is away is asked again.
    if ([0, 503].includes(error.status)) return;
    this.#refused.add(id);
    const isFull = error.name === "QuotaExceededError";
    this.#callbacks.told(
      isFull
        ? "The browser has no room for more pictures. Delete some, or let this site keep more."
        : `A picture is not kept: ${error.message}`,
      true,
    );
  }

  // Copies a picture of the server into this browser.
  async keep(id) {
    const picture = this.#pictures.get(id);
    if (!picture || picture.kept || this.#adding.has(id)) return;
    this.#adding.add(id);
    try {
      const file = await this.#backend.blob(picture.url);
      const video = picture.videoUrl ? await this.#backend.blob(picture.videoUrl) : null;
      const bytes = file.size + (video?.size ?? 0);
      if (!(await this.#makeRoom(bytes))) return;
      const record = { ...picture, ...(await small(file)), kept: true, isVideo: Boolean(video), bytes };
      delete record.url;
      delete record.videoUrl;
      await disk.put([
        ["pictures", record],
        ["files", { id, file, video }],
      ]);
      if (this.#gone.has(id)) return;
      this.#pictures.set(id, record);
      this.#tell();
    } finally {
      this.#adding.delete(id);
    }
  }

  // Takes out the oldest that are no favourites until there is room; whether there is.
  async #makeRoom(bytes) {
    const kept = this.all.filter((picture) => picture.kept);
    let count = kept.length + 1;
    let sum = kept.reduce((total, each) => total + bytesOf(each), bytes);
    const out = [];
    for (const picture of kept.filter(({ favourite }) => !favourite).reverse()) {
      if (count <= this.#most.pictures && sum <= this.#most.bytes) break;
      out.push(picture.id);
      count -= 1;
      sum -= bytesOf(picture);
    }
    if (count > this.#most.pictures || sum > this.#most.bytes) {
      this.#callbacks.told(
        "The gallery is full of favourites: new pictures are shown only as long as the server has them.",
        true,
      );
      return false;
    }
    if (out.length) {
      await this.#take(out);
      const many = out.length === 1 ? "The oldest picture was" : `The ${out.length} oldest pictures were`;
      this.#callbacks.told(`${many} taken out of the gallery, which is full. Favourites stay.`, false);
    }
    return true;
  }

  async #take(ids) {
    const time = Date.now();
    const oldest = [...this.#gone]
      .sort(([, a], [, b]) => a - b)
      .slice(0, Math.max(0, this.#gone.size + ids.length - MOST_GONE));
    await disk.put(ids.map((id) => ["gone", { id, time }]));
    await disk.remove([
      ...ids.flatMap((id) => [
        ["pictures", id],
        ["files", id],
      ]),
      ...oldest.map(([id]) => ["gone", id]),
    ]);
    for (const [id] of oldest) this.#gone.delete(id);
    for (const id of ids) {
      this.#gone.set(id, time);
      this.#pictures.delete(id);
    }
  }

  // Deletes pictures here; and from the server those of own jobs of which nothing is left.
  async remove(ids) {
    const jobs = new Set(
      ids
        .map((id) => this.#pictures.get(id))
        .filter((picture) => picture?.mine)
        .map(({ job }) => job),
    );
    await this.#take(ids);
    this.#tell();
    for (const { job } of this.#pictures.values()) jobs.delete(job);
    for (const job of jobs) this.#callbacks.dropped(job);
  }

  async favour(id, favourite) {
    if (favourite) await this.keep(id);
    const picture = this.#pictures.get(id);
    if (!picture) return;
    picture.favourite = favourite;
    await disk.change("pictures", id, { favourite });
    this.#tell();
  }

  // { file, video }: the picture, and the video whose first frame it is.
  async files(id) {
    const picture = this.#pictures.get(id);
    if (!picture) throw new Error("This picture was deleted.");
    if (picture.kept) {
      const files = await disk.get("files", id);
      if (!files) throw new Error("This browser does not have the picture any more.");
      return files;
    }
    return {
      file: await this.#backend.blob(picture.url),
      video: picture.videoUrl ? await this.#backend.blob(picture.videoUrl) : null,
    };
  }

  // The small one, or null.
  async thumb(id) {
    const picture = this.#pictures.get(id);
    if (!picture) return null;
    if (!picture.thumb && picture.url) Object.assign(picture, await small(await this.#backend.blob(picture.url)));
    return picture.thumb ?? (await this.files(id)).file;
  }
}
