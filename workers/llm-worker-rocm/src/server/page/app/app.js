// Puts the page together: the server, the chats, and the parts that show them.
import { Backend } from "./backend.js";
import { Chats } from "./chats.js";
import { Composer, showContext } from "./composer.js";
import { $, make } from "./dom.js";
import { icon } from "./icons.js";
import { askForKey } from "./key-dialog.js";
import { notice } from "./notices.js";
import { Settings } from "./settings.js";
import { Side } from "./side.js";
import { local } from "./small-store.js";
import { Store } from "./store.js";
import "./theme.js";
import { Thread } from "./thread.js";
import { exportChats, fileName, importChats } from "./transfer.js";

const idInAddress = () => decodeURIComponent(location.hash.slice(1));

const store = await Store.open();
if (store.reason) notice(`This browser keeps no chats: ${store.reason}. They last until the tab is closed.`, { isError: true });

const backend = new Backend({ changed: () => showServer(), keyWanted: (reason) => askForKey(reason, () => backend.refresh()) });

const chats = new Chats(store, backend, {
  changed: () => showAll(),
  grown: (message) => {
    if (message.conversation !== chats.current?.id) return;
    thread.grow(message, (each) => chats.stateOf(each));
    showStatus();
  },
  opened: (isPlain) => opened(isPlain),
  failed: (message, status) => failed(message, status),
});

// What can be done with messages.
const thread = new Thread({
  edit: (message, text) => chats.edit(message, text),
  retry: (message) => chats.retry(message),
  goOn: (message) => chats.goOn(message),
  remove: (message) => chats.remove(message),
  sendResults: (message, results) => chats.sendResults(message, results),
  openSettings: (name, message) => settings.open(chats.settings, { name, message }),
  version: (message, step) => {
    const other = chats.version(message, step);
    const [before, after] = thread.view(other?.id)?.node.querySelectorAll(".versions button") ?? [];
    (step < 0 !== before?.disabled ? before : after)?.focus();
  },
});

const composer = new Composer({
  send: (text, attachments) => {
    thread.toEnd();
    const sent = chats.send(text, attachments);
    composer.adopt(chats.current.id);
    return sent;
  },
  stop: () => chats.run?.stop(),
  takes: () => backend.takes,
  editLast: () => {
    const last = chats.run ? null : chats.path.findLast(({ role }) => role === "user");
    if (last) thread.view(last.id)?.edit();
    return Boolean(last);
  },
});

const side = new Side({
  create: () => create(),
  rename: (id, title) => chats.rename(id, title),
  remove: (id) => chats.removeChats([id]),
  save: async (id) => {
    const chat = await chats.whole(id);
    exportChats([chat], fileName(chat.conversation.title));
  },
  containing: (text) => store.containing(text),
});

const settings = new Settings({
  about: () => ({ defaults: backend.props?.defaults, adapters: backend.adapters, facts: facts() }),
  change: (values) => chats.changeSettings(values),
  makeDefault: (values) => {
    local.set("defaults", JSON.stringify(values));
    notice("New chats begin with these settings.");
  },
  keyChanged: () => backend.refresh(),
  exportAll: async () => exportChats(await Promise.all(chats.list.map(({ id }) => chats.whole(id))), "chats"),
  importFile: async (file) => {
    try {
      const found = importChats(await file.text());
      await chats.add(found);
      notice(found.length === 1 ? "One chat is there now." : `${found.length} chats are there now.`);
    } catch (error) {
      notice(error.message, { isError: true });
    }
  },
  removeAll: () => chats.removeChats(chats.list.map(({ id }) => id)),
});

const facts = () =>
  [
    ["Model", backend.chosen(chats.model) ?? backend.name],
    ["Device", backend.device],
    ["Context", backend.context ? `${backend.context.toLocaleString("en")} tokens` : ""],
  ].filter(([, value]) => value);

// Showing ----------------------------------------------------------------------------------------

const showStatus = () => {
  const text = backend.problem || chats.run?.status || "";
  $("status").textContent = text;
  $("status").classList.toggle("error", backend.isError);
  const used = chats.run?.total || chats.path.findLast(({ figures }) => figures)?.figures.total || 0;
  showContext(used, backend.context);
};

const STATES = { unloaded: "not loaded", loading: "loading", failed: "failed", sleeping: "asleep", unloading: "unloading" };

const showServer = () => {
  const isChoice = backend.models.length > 1;
  const model = backend.chosen(chats.model) ?? backend.name;
  $("model").hidden = isChoice;
  $("models").hidden = !isChoice;
  $("model").textContent = model;
  $("device").textContent = backend.device;
  const options = backend.models.map(({ id, state }) => {
    const word = STATES[state];
    return make("option", { value: id }, word ? `${id} (${word})` : id);
  });
  $("models").replaceChildren(...options);
  if (isChoice) $("models").value = model;
  document.title = [chats.current?.title, model].filter(Boolean).join(" – ") || "Chat";
  composer.setReady(backend.isReady);
  showEmpty();
  showStatus();
};

const showEmpty = () => {
  const isEmpty = chats.path.length === 0;
  $("empty").hidden = !isEmpty;
  $("messages").hidden = isEmpty;
  if (!isEmpty) return;
  const hints = [
    ["Enter", "sends"],
    ["Shift+Enter", "begins a line"],
    ["Escape", "stops an answer"],
    ["Ctrl+K", "searches chats"],
  ];
  $("empty").replaceChildren(
    make("h1", {}, "How can I help?"),
    make("p", {}, "Chats are kept in this browser and go to this server only."),
    make("ul", { class: "keys" }, hints.map(([keys, does]) => make("li", {}, make("kbd", {}, keys), ` ${does}`))),
  );
};

const showAll = (isPlain = false) => {
  showEmpty();
  thread.show(chats.path, (message) => chats.stateOf(message), isPlain);
  side.show(chats.list, chats.current?.id ?? null, chats.running);
  composer.setRunning(chats.run !== null);
  showServer();
};

// A chat that was being shown when the page died is shown as plain text: it must not do so again and again.
const opened = (isPlain) => {
  local.set("opening", chats.current?.id ?? null);
  thread.clear();
  showAll(isPlain);
  thread.toEnd();
  composer.open(chats.current?.id ?? "");
  composer.focus();
  backend.choose(chats.model);
  requestAnimationFrame(() => setTimeout(() => local.set("opening", null)));
};

const failed = (message, status) => {
  if (status === 401) {
    askForKey(message.error.message, async () => {
      await backend.refresh();
      if (message.conversation === chats.current?.id) await chats.retry(message);
    });
  } else if (status === 0 || status === 503) backend.watch();
};

// What the user does -----------------------------------------------------------------------------

const create = () => {
  side.setOpen(false);
  if (location.hash) location.hash = "";
  else chats.open("");
};

const openFromAddress = async () => {
  const id = idInAddress();
  const diedHere = id !== "" && local.get("opening") === id;
  if (!(await chats.open(id, diedHere))) {
    notice("This chat is not in this browser.");
    location.hash = "";
  } else if (diedHere) {
    const again = { label: "Try formatted", run: () => chats.open(id) };
    notice("This chat is shown as plain text, as the page ended while showing it last time.", { action: again });
  }
};

window.addEventListener("hashchange", openFromAddress);

document.addEventListener("keydown", (event) => {
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand && event.key.toLowerCase() === "k") {
    event.preventDefault();
    side.focusSearch();
  } else if (isCommand && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    create();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (side.isOpen) side.setOpen(false);
    else chats.run?.stop();
  }
});

// What is typed anywhere goes to the message.
document.addEventListener("keypress", (event) => {
  const isFree = [document.body, $("messages")].includes(document.activeElement);
  if (isFree && event.key.length === 1 && !event.ctrlKey && !event.metaKey) $("input").focus();
});

$("settings-open").addEventListener("click", () => settings.open(chats.settings));
$("chat-settings").append(icon("settings"));
$("chat-settings").addEventListener("click", () => settings.open(chats.settings));
$("models").addEventListener("change", async () => {
  await chats.chooseModel($("models").value);
  await backend.choose(chats.model);
});

await openFromAddress();
await chats.refresh();
await backend.watch();
