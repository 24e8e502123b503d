// What several panes share: the pictures, the jobs and the requests of this browser.
import { disk } from "./disk.js";
import { Collection } from "./gallery/collection.js";
import { notice } from "./notices.js";
import { Past } from "./past.js";
import { Jobs } from "./queue/jobs.js";

let kept = null;

const open = async ({ backend }) => {
  if (disk.reason)
    notice(`This browser keeps no pictures: ${disk.reason}. They last until the tab is closed.`, { isError: true });
  const past = new Past();
  const say = (error) => notice(error.message, { isError: true });
  const collection = new Collection(backend, {
    told: (text, isError) => notice(text, { isError }),
    // The server may have forgotten it, or be none that forgets; its pictures are gone from here in any case.
    dropped: (job) => jobs.forget(job).catch(() => {}),
  });
  const ended = new Set();
  const jobs = new Jobs(backend, {
    listed: (listed) => collection.takeFromServer(listed, (id) => jobs.isMine(id)).catch(say),
    submitted: (fields) => past.add(fields).catch(say),
    ended: (job) => ended.forEach((listener) => listener(job)),
    failed: say,
  });
  await Promise.all([past.open(), collection.open()]);
  await jobs.open();
  return { collection, jobs, past, onEnd: (listener) => ended.add(listener) };
};

// Opened once, by whichever pane comes first.
export const keptOf = (context) => (kept ??= open(context));
