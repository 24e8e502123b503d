// Puts the page together: the server, the request that is edited, the panes.
//
// Everything that shows something gets `context`:
//
// request.fields           what is asked for besides what is the model's, by the names of `/v1/jobs`; not to be changed in
//                          place; pictures are blobs
// request.update(fields)   sets fields; null and undefined take one out. `replace(fields)` takes all others out
// request.subscribe(f)     f(names) after each change; gives a function that ends it
// request.build()          promise of the whole body of a job of the open pane, pictures as blobs: change it, submit it
// backend.choices          `GET /v1/choices` of the model that is chosen; null before it is known
// backend.models           names of models; the request's field `model` chooses
// backend.problem          what keeps the server from answering, or ""
// backend.subscribe(n, f)  n is "choices", "state" (of the server) or "job": f(job)
// backend.submit(body)     promise of a job; throws ServerError with message, status and param if it is refused
// backend.follow(id, body) a job of which the id is known; job.ended is a promise of the job when nothing more happens
// backend.cancel(id), list(), get(path), post(path, json), blob(url)
// sendTo(picture, where)   promise; where: text, image, inpaint, first, last, key_frame (of videos), control, reference,
//                          upscale, preprocess, info
// canSend(where)           whether there is such a place now
// generate()               promise of the open pane's job, or null if it was refused, which the form shows
// open(pane), openForm()   opens a pane, or the form's that was open last
// addPlace(where, f)       a place that pictures can be sent to: f(blob, picture)
//
// A job is { id, fields, state, position, step, total, secondsLeft, preview, error, images, created, ended }, a picture
// { url, videoUrl, seed, parameters, job, index } or { blob, parameters, mask (for inpaint) }.
import { Backend } from "./backend.js";
import { $, make } from "./dom.js";
import { Form } from "./form/form.js";
import { mount as mountGallery } from "./gallery/gallery.js";
import { mount as mountGrid } from "./grid/grid.js";
import { mount as mountHistory } from "./history.js";
import { iconButton } from "./icons.js";
import { askForKey } from "./key-dialog.js";
import { mount as mountKeyboard } from "./keyboard.js";
import { notice } from "./notices.js";
import { mount as mountInfo } from "./panes/info.js";
import { mount as mountPreprocess } from "./panes/preprocess.js";
import { mount as mountUpscale } from "./panes/upscale.js";
import { mount as mountQueue } from "./queue/queue.js";
import { Request } from "./request.js";
import { Results } from "./results.js";
import { Run } from "./run.js";
import { Sender } from "./send.js";
import { Source } from "./source.js";
import { Tabs } from "./tabs.js";
import { setTheme, theme, THEMES } from "./theme.js";

// Panes that are a form with something to start from, and when a model has them.
const FORMS = [
  { id: "text", label: "Text to image", has: ({ takes, video }) => takes.text_alone && !video },
  { id: "video", label: "Video", has: ({ video }) => video !== null },
  { id: "image", label: "Image to image", has: ({ takes }) => takes.picture },
  { id: "inpaint", label: "Inpaint", has: ({ takes }) => takes.picture },
];

// Panes of their own: `mount(element, context)` fills them.
const PANES = [
  { id: "upscale", label: "Upscale", mount: mountUpscale },
  { id: "preprocess", label: "Preprocess", mount: mountPreprocess },
  { id: "info", label: "PNG info", mount: mountInfo },
  { id: "gallery", label: "Gallery", mount: mountGallery },
  { id: "queue", label: "Queue", mount: mountQueue },
  { id: "history", label: "History", mount: mountHistory },
  { id: "grid", label: "Grid", mount: mountGrid },
];

const backend = new Backend({ keyWanted: (reason) => askForKey(reason, () => backend.watch()) });
const request = new Request();
const sender = new Sender();
const context = {
  request,
  backend,
  sendTo: (picture, where) => sender.send(picture, where),
  canSend: (where) => sender.has(where),
  addPlace: (where, take) => sender.add(where, take),
  generate: () => {
    // What was refused before says nothing of this request.
    form.clear();
    return run.generate();
  },
  open: (pane) => tabs.open(pane),
  openForm: () => tabs.open(formPane),
};

const form = new Form(context);
const run = new Run(context, {
  refused: (error) => {
    if (error.status === 401) return askForKey(error.message, () => backend.watch());
    // Where the field is that is wrong.
    tabs.open(formPane);
    return form.refuse(error);
  },
  submitted: (job) => results.add(job),
});
context.run = run;
const source = new Source(context);
const results = new Results(context);

// The form's pane that was open last: what panes without a form submit, too.
let formPane = FORMS[0].id;
const tabs = new Tabs((pane) => {
  if (!FORMS.some(({ id }) => id === pane)) return;
  formPane = pane;
  form.showPane(pane);
  source.show(pane);
});

request.compose(() => {
  form.check();
  return source.compose(formPane);
});

for (const { id, label } of FORMS) tabs.add(id, label, $("pane-create"));
for (const { id, label, mount } of PANES) {
  const section = make("section", { id: `pane-${id}`, class: "pane" });
  $("panes").append(section);
  tabs.add(id, label, section);
  Promise.resolve(mount(section, context)).catch((error) => notice(`${label}: ${error.message}`, { isError: true }));
}
// Places that a model's panes have.
const FORM_PLACES = {
  image: { pane: "image", has: ({ takes }) => takes.picture },
  inpaint: { pane: "inpaint", has: ({ takes }) => takes.picture },
  first: { pane: "video", has: ({ video }) => video && video.first !== "never" },
  last: { pane: "video", has: ({ video }) => video && video.last !== "never" },
};

const offerPlaces = (choices) => {
  for (const [place, { pane, has }] of Object.entries(FORM_PLACES)) {
    if (!has(choices)) sender.remove(place);
    else {
      sender.add(place, async (blob, { mask }) => {
        tabs.open(pane);
        await source.set(place, blob, mask);
      });
    }
  }
  // The form adds those that this model has.
  for (const place of ["control", "reference", "key_frame"]) sender.remove(place);
};

const keyboard = mountKeyboard(document, context);

// The head -----------------------------------------------------------------------------------------

const showHead = () => {
  const { choices, models } = backend;
  const isChoice = models.length > 1;
  $("models").hidden = !isChoice;
  $("model").hidden = isChoice;
  $("model").textContent = choices?.model ?? "";
  $("models").replaceChildren(...models.map((name) => make("option", { value: name }, name)));
  if (isChoice) $("models").value = request.fields.model ?? models[0];
  $("device").textContent = backend.device;
  document.title = choices ? `${choices.model} – pictures` : "Pictures";
};

const showState = () => {
  $("state").textContent = backend.problem;
  $("go").disabled = backend.choices === null;
};

$("models").addEventListener("change", () => {
  request.update({ model: $("models").value });
  backend.choose($("models").value);
});

const nextTheme = () => THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
const themeButton = iconButton("system", "Light, dark, or as the system has it", () => {
  setTheme(nextTheme());
  themeButton.title = `Colours: ${theme()}`;
});
const keysButton = make("button", { type: "button", class: "icon-button", title: "Keys (?)", "aria-label": "Keys", onclick: () => keyboard.help() }, "?");
$("tools").append(keysButton, themeButton);

backend.subscribe("choices", () => {
  showHead();
  offerPlaces(backend.choices);
  source.build(backend.choices);
  form.build();
  for (const { id, has } of FORMS) tabs.offer(id, has(backend.choices));
  showState();
});
backend.subscribe("state", showState);
backend.subscribe("job", () => {
  $("cancel").disabled = run.open.length === 0;
});

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  context.generate();
});
const reset = () => {
  const { prompt, negative_prompt, model } = request.fields;
  request.replace({ prompt, negative_prompt, model });
};
$("actions-more").append(
  make("button", { type: "button", id: "reset", class: "quiet", title: "All settings as the model has them; prompts stay", onclick: reset }, "Reset"),
);
$("cancel").addEventListener("click", () => run.cancel());

showState();
tabs.start();
backend.prefer(request.fields.model);
await backend.watch();
