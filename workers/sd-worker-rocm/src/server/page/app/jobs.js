// A job of the server, followed to its end.
import { events, get, ServerError } from "./server.js";

const AGAIN_MS = 1000;
// How often a job that waits is asked after: for each job before it, and at most.
const NEXT_MS = 50;
const WAITING_MS = 300;
const MOST_MS = 3000;
// Browsers open six connections to a server, all tabs together: only jobs that run are listened to, and these at most.
const MOST_STREAMS = 2;
let streams = 0;

export const FINAL = ["completed", "failed", "cancelled"];

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export const newJob = (id, fields) => {
  const job = {
    id,
    fields,
    state: "queued",
    position: 0,
    step: 0,
    total: 0,
    secondsLeft: null,
    preview: null,
    error: null,
    images: [],
    created: Date.now(),
  };
  job.ended = new Promise((resolve) => {
    Object.defineProperty(job, "end", { value: () => resolve(job) });
  });
  return job;
};

// What `GET /v1/jobs/{id}` says, in our words.
export const describe = (job, told) => {
  Object.assign(job, {
    state: told.state,
    position: told.position ?? 0,
    step: told.step ?? job.step,
    total: told.total ?? job.total,
    secondsLeft: told.seconds_left ?? null,
    error: told.error?.message ?? told.error ?? null,
    created: told.created ? told.created * 1000 : job.created,
  });
  const images = told.images ?? [];
  job.images = images.map(({ url, video_url: videoUrl, seed, parameters }, index) => ({
    url,
    videoUrl: videoUrl ?? null,
    seed,
    parameters,
    job: job.id,
    index,
  }));
};

const address = (id) => `v1/jobs/${encodeURIComponent(id)}`;

// Follows a job to its end. A server that does not answer is asked again; `problem(text)` hears of it.
export const follow = async (job, { changed, problem }) => {
  while (!FINAL.includes(job.state)) {
    try {
      describe(job, await get(address(job.id)));
      problem("");
      changed(job);
      if (job.state === "queued") await wait(Math.min(MOST_MS, job.position * WAITING_MS || NEXT_MS));
      else if (job.state === "running" && streams < MOST_STREAMS) await listen(job, changed, problem);
      else if (job.state === "running") await wait(WAITING_MS);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.status === 404) {
        job.state = "failed";
        job.error = "The server does not know this job any more: it was restarted without --queue-dir, or forgot it.";
      } else {
        problem(error.message);
        await wait(AGAIN_MS);
      }
    }
    changed(job);
  }
  job.preview = null;
  changed(job);
  job.end();
};

const listen = async (job, changed, problem) => {
  streams += 1;
  try {
    await read(job, changed, problem);
  } finally {
    streams -= 1;
  }
};

const read = async (job, changed, problem) => {
  let begun = null;
  for await (const { name, data } of events(`${address(job.id)}/stream`)) {
    problem("");
    if (name === "queued") Object.assign(job, { state: "queued", position: data.position });
    else if (name === "progress") {
      begun ??= { step: data.step, at: performance.now() };
      const each = (performance.now() - begun.at) / Math.max(1, data.step - begun.step);
      const isKnown = data.step > begun.step;
      const secondsLeft = isKnown ? (each * (data.total - data.step)) / 1000 : null;
      Object.assign(job, { state: "running", position: 0, step: data.step, total: data.total, secondsLeft });
    } else if (name === "preview") job.preview = `data:image/png;base64,${data.image}`;
    // How it ended, `GET` tells whole.
    else if (name === "complete" || name === "error") return;
    changed(job);
  }
};
