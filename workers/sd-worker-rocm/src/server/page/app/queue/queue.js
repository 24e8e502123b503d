// The pane of the queue: everybody's jobs in line, and what became of this browser's.
import { make } from "../dom.js";
import { keptOf } from "../kept.js";
import { notice } from "../notices.js";
import { Forever } from "./forever.js";
import { isEnded } from "./jobs.js";
import { Signs } from "./signs.js";

const ENDED_SHOWN = 20;

const STATES = {
  queued: "waits",
  running: "runs",
  completed: "finished",
  failed: "failed",
  cancelled: "cancelled",
  lost: "lost",
};

// Seconds as people say them.
export const duration = (seconds) => {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
};

export const mount = async (element, context) => {
  const { jobs, collection, onEnd } = await keptOf(context);
  const { backend } = context;
  const views = new Map();
  const failed = (error) => notice(error.message, { isError: true });
  const button = (label, run, attributes = {}) =>
    make(
      "button",
      { type: "button", class: "small", onclick: () => Promise.resolve(run()).catch(failed), ...attributes },
      label,
    );

  const summary = make("p", { class: "hint", role: "status" });
  const list = make("ol", { class: "jobs" });
  const forever = new Forever(context);
  const signs = new Signs(context, jobs);
  onEnd((job) => signs.ended(job));
  const cancelAll = button("Cancel all of mine", () => Promise.all(jobs.active.map(({ id }) => jobs.cancel(id))));
  const clear = button(
    "Clear what has ended",
    async () => {
      for (const job of jobs.own.filter((each) => isEnded(each) && each.state !== "completed"))
        await jobs.forget(job.id).catch(() => {});
    },
    { class: "small quiet" },
  );
  element.replaceChildren(make("div", { class: "bar row" }, forever.node, signs.node, cancelAll, clear), summary, list);

  const create = (id) => {
    const view = {
      state: make("strong"),
      prompt: make("span", { class: "prompt" }),
      facts: make("p", { class: "hint" }),
      error: make("p", { class: "error" }),
      bar: make("progress", { max: 1, "aria-label": "Progress" }),
      preview: make("img", { alt: "preview", class: "preview" }),
      first: button("First", () => jobs.move(id, 0), { class: "small quiet", title: "To the front of the line" }),
      up: button("Up", () => jobs.move(id, placeOf(id) - 1), { class: "small quiet", "aria-label": "Up in line" }),
      down: button("Down", () => jobs.move(id, placeOf(id) + 1), {
        class: "small quiet",
        "aria-label": "Down in line",
      }),
      cancel: button("Cancel", () => jobs.cancel(id)),
      again: button("Send again", () => jobs.again(id)),
      remove: button("Remove", () => jobs.forget(id), { class: "small quiet" }),
      pictures: button("Pictures", () => context.open("gallery"), { class: "small quiet" }),
    };
    view.node = make(
      "li",
      { "data-id": id },
      view.preview,
      make(
        "div",
        { class: "what" },
        make("p", {}, view.state, " ", view.prompt),
        view.bar,
        view.facts,
        view.error,
        make(
          "div",
          { class: "row" },
          view.cancel,
          view.first,
          view.up,
          view.down,
          view.again,
          view.remove,
          view.pictures,
        ),
      ),
    );
    views.set(id, view);
    return view;
  };

  const waiting = () => jobs.listed.filter(({ state }) => state === "queued");
  const placeOf = (id) => waiting().findIndex((job) => job.id === id);

  // What the list and the page's own following say of one job.
  const entry = (id) => {
    const listed = jobs.listed.find((job) => job.id === id);
    const own = jobs.get(id);
    const followed = backend.jobs.get(id);
    const state = own && isEnded(own) ? own.state : (listed?.state ?? own.state);
    const isRunning = state === "running";
    return {
      id,
      state,
      isMine: Boolean(own),
      isGrid: Boolean(own?.grid),
      model: listed?.model,
      prompt: listed?.prompt ?? own?.fields?.prompt ?? collection.get(`${id}-0`)?.prompt ?? "",
      position: listed?.position ?? 0,
      step: Math.max(listed?.step ?? 0, followed?.step ?? 0),
      total: listed?.total || followed?.total || 0,
      secondsLeft: isRunning ? (listed?.seconds_left ?? followed?.secondsLeft ?? null) : null,
      preview: isRunning ? (followed?.preview ?? null) : null,
      error: own?.error ?? listed?.error?.message ?? (typeof listed?.error === "string" ? listed.error : null),
      isAgain: Boolean(own?.fields) && ["failed", "cancelled", "lost"].includes(state),
      created: listed ? listed.created * 1000 : own.time,
      pictures: listed?.images?.length ?? 0,
    };
  };

  const showOne = (job, count) => {
    const view = views.get(job.id) ?? create(job.id);
    const isActive = !isEnded(job);
    view.node.className = `${job.state}${job.isMine ? "" : " foreign"}`;
    view.state.textContent = `${STATES[job.state] ?? job.state}${job.isMine ? "" : " (another client's)"}`;
    view.prompt.textContent = job.prompt || "(no prompt)";
    const place = placeOf(job.id);
    const facts = [
      job.state === "queued" && (job.position ? `${job.position} before it` : "next"),
      job.state === "running" && (job.total ? `step ${job.step} of ${job.total}` : "begins"),
      job.secondsLeft !== null && `${duration(job.secondsLeft)} left`,
      job.isGrid && "part of a grid",
      backend.models.length > 1 && job.model,
      job.state === "completed" && job.pictures > 0 && `${job.pictures} ${job.pictures === 1 ? "picture" : "pictures"}`,
      new Date(job.created).toLocaleTimeString(),
    ];
    view.facts.textContent = facts.filter(Boolean).join(" · ");
    view.error.textContent = isActive ? "" : (job.error ?? "");
    view.bar.hidden = job.state !== "running";
    view.bar.value = job.total ? job.step / job.total : 0;
    view.preview.hidden = !job.preview;
    if (job.preview && view.preview.src !== job.preview) view.preview.src = job.preview;
    view.cancel.hidden = !isActive;
    for (const each of [view.first, view.up, view.down]) each.hidden = job.state !== "queued" || count < 2;
    view.first.disabled = view.up.disabled = place <= 0;
    view.down.disabled = place === count - 1;
    view.again.hidden = !job.isAgain;
    view.remove.hidden = isActive || !job.isMine || job.state === "completed";
    view.pictures.hidden = job.state !== "completed";
    return view.node;
  };

  const show = () => {
    const active = jobs.listed.filter((job) => !isEnded(job)).map(({ id }) => id);
    const unlisted = jobs.active.map(({ id }) => id).filter((id) => !active.includes(id));
    const all = new Set([...active, ...unlisted]);
    const ended = [...jobs.own.filter(isEnded).map(({ id }) => id), ...jobs.listed.filter(isEnded).map(({ id }) => id)];
    const over = [...new Set(ended)]
      .filter((id) => !all.has(id))
      .map(entry)
      .sort((a, b) => b.created - a.created)
      .slice(0, ENDED_SHOWN);
    const count = waiting().length;
    const nodes = [...[...all].map(entry), ...over].map((job) => showOne(job, count));
    for (const [id, { node }] of views) {
      if (nodes.includes(node)) continue;
      node.remove();
      views.delete(id);
    }
    nodes.forEach((node, at) => {
      if (list.childNodes[at] !== node) list.insertBefore(node, list.childNodes[at] ?? null);
    });
    const left = jobs.listed.reduce((sum, { seconds_left }) => sum + (seconds_left ?? 0), 0);
    const told = active.length
      ? `${active.length} in line, ${jobs.active.length} of them from this browser${left ? `; the running one has ${duration(left)} left` : ""}.`
      : "Nothing waits or runs.";
    summary.textContent = jobs.problem || told + keeping();
    summary.classList.toggle("error", Boolean(jobs.problem));
    cancelAll.disabled = jobs.active.length === 0;
    clear.disabled = !jobs.own.some((job) => isEnded(job) && job.state !== "completed");
  };

  // How long the server keeps things.
  const keeping = () => {
    if (!jobs.kept) return "";
    const { seconds, count, on_disk: isOnDisk } = jobs.kept;
    return ` The server keeps what has ended for ${duration(seconds)}, ${count} jobs at most${isOnDisk ? "; what waits goes on after it was started anew." : ", and nothing after it was started anew."}`;
  };

  jobs.subscribe(show);
  show();
};
