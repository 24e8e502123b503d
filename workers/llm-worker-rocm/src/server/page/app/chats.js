// The chats and the one that is open: what is done to them, and the answers in the making.
import { newId } from "./dom.js";
import { announce, notice } from "./notices.js";
import { body } from "./request.js";
import { Run } from "./run.js";
import { local } from "./small-store.js";
import { Tree } from "./tree.js";

const LONGEST_TITLE = 80;
// Another tab tells of an answer that it writes every second.
const ELSEWHERE_MS = 4000;

const titleOf = (text, attachments) => text.split("\n").find((line) => line.trim())?.trim().slice(0, LONGEST_TITLE) || attachments[0]?.name || "Untitled";

export class Chats {
  list = [];
  // The chat that is open, or null: then what is sent begins one.
  current = null;
  tree = new Tree();
  #runs = new Map();
  #opened = 0;
  // When another tab last wrote to a chat.
  #elsewhere = new Map();
  // What is done to the store, one after the other, and the messages that are not there yet.
  #queue = Promise.resolve();
  #unsaved = new Map();
  #draft;

  // `callbacks`: changed() for list and chat, grown(message), opened(isPlain), failed(message, status).
  constructor(store, backend, callbacks) {
    this.store = store;
    this.backend = backend;
    this.callbacks = callbacks;
    this.#draft = this.#freshDraft();
    store.onChange((id) => this.#changedElsewhere(id));
  }

  #freshDraft() {
    return { settings: local.json("defaults", {}), model: local.get("model") };
  }

  get settings() {
    return (this.current ?? this.#draft).settings;
  }

  get model() {
    return (this.current ?? this.#draft).model;
  }

  get run() {
    return this.#runs.get(this.current?.id) ?? null;
  }

  get running() {
    return new Set(this.#runs.keys());
  }

  get path() {
    return this.current ? this.tree.path(this.current.leaf) : [];
  }

  // Does something with the store once all before is done; what fails is told, and the page goes on.
  #kept(work) {
    const told = (error) => notice(`This browser cannot keep the chat: ${error?.message ?? error}`, { isError: true });
    this.#queue = this.#queue.then(work).catch(told);
    return this.#queue;
  }

  async refresh() {
    this.list = (await this.#kept(() => this.store.conversations())) ?? this.list;
    this.callbacks.changed();
  }

  // Opens a chat; an empty id begins a new one. Gives whether there is one.
  async open(id, isPlain = false) {
    const turn = ++this.#opened;
    const found = id ? await this.#kept(() => this.store.conversation(id)) : null;
    const messages = found ? ((await this.#kept(() => this.store.messages(id))) ?? []) : [];
    if (turn !== this.#opened) return true;
    this.current = found ?? null;
    if (!found) this.#draft = this.#freshDraft();
    this.#plant(messages);
    this.callbacks.opened(isPlain);
    return Boolean(found) || !id;
  }

  #plant(messages) {
    this.tree = new Tree(messages);
    // Those that were added meanwhile, and the one that is being written, as they are here.
    for (const message of this.#unsaved.values()) {
      if (message.conversation === this.current?.id) this.tree.add(message);
    }
    if (this.run) this.tree.add(this.run.message);
    if (this.current && !this.tree.get(this.current.leaf)) this.current.leaf = this.tree.leafBehind(null);
  }

  async #changedElsewhere(id) {
    this.#elsewhere.set(id, Date.now());
    await this.refresh();
    if (id !== this.current?.id) return;
    const found = await this.#kept(() => this.store.conversation(id));
    if (id !== this.current?.id) return;
    if (!found) {
      notice("This chat was deleted in another tab.");
      location.hash = "";
      return;
    }
    const messages = (await this.#kept(() => this.store.messages(id))) ?? [];
    if (id !== this.current?.id) return;
    const { leaf } = this.current;
    this.current = { ...found, leaf };
    this.#plant(messages);
    // What was added at the end of what is shown is shown, too.
    this.current.leaf = this.tree.leafBehind(this.current.leaf);
    this.callbacks.changed();
    setTimeout(() => this.callbacks.changed(), ELSEWHERE_MS);
  }

  isRunning(message) {
    if (message.state !== "running") return false;
    const here = this.#runs.get(message.conversation);
    if (here) return here.message.id === message.id;
    return Date.now() - (this.#elsewhere.get(message.conversation) ?? 0) < ELSEWHERE_MS;
  }

  stateOf(message) {
    const versions = this.tree.versions(message);
    const isLast = this.current.leaf === message.id;
    return { isRunning: this.isRunning(message), versions: versions.length, version: versions.indexOf(message), isLast, hasResult: !isLast };
  }

  // Settings and model -----------------------------------------------------------------------------

  async changeSettings(settings) {
    (this.current ?? this.#draft).settings = settings;
    await this.#changeCurrent({ settings });
  }

  async chooseModel(model) {
    (this.current ?? this.#draft).model = model;
    local.set("model", model);
    await this.#changeCurrent({ model });
  }

  async #changeCurrent(fields) {
    if (!this.current) return;
    const { id } = this.current;
    await this.#kept(() => this.store.changeConversation(id, fields));
  }

  // Messages ---------------------------------------------------------------------------------------

  #message(role, parent, fields) {
    return { id: newId(), conversation: this.current.id, parent, role, content: "", created: Date.now(), ...fields };
  }

  // Adds messages, each behind the one before, and shows the last. They are kept soon.
  #add(...messages) {
    for (const message of messages) {
      this.tree.add(message);
      this.#unsaved.set(message.id, message);
    }
    const fields = { leaf: messages.at(-1).id, updated: Date.now() };
    Object.assign(this.current, fields);
    this.callbacks.changed();
    const { id } = this.current;
    this.#kept(async () => {
      await this.store.putMessages(...messages);
      await this.store.changeConversation(id, fields);
      for (const message of messages) this.#unsaved.delete(message.id);
    });
    this.refresh();
  }

  // Whether an answer is being written in the open chat, which must be over before the next begins.
  #isBusy() {
    if (this.run) notice("An answer is being written: stop it first.");
    return this.run !== null;
  }

  send(text, attachments) {
    if (!this.current) {
      const now = Date.now();
      const title = titleOf(text, attachments);
      this.current = { id: newId(), title, created: now, updated: now, leaf: null, ...this.#draft };
      this.tree = new Tree();
      this.#opened += 1;
      history.replaceState(null, "", `#${this.current.id}`);
      const kept = { ...this.current };
      this.#kept(() => this.store.putConversation(kept));
    }
    const more = attachments.length ? { attachments } : {};
    const message = this.#message("user", this.current.leaf, { content: text, ...more });
    this.#add(message);
    return this.#answer(message.id);
  }

  #answer(parent) {
    const message = this.#message("assistant", parent, { state: "running" });
    const path = this.tree.path(parent);
    return this.#generate(message, path, () => this.#add(message));
  }

  // Runs a request whose answer fills a message in. The chat may be left meanwhile.
  async #generate(message, path, begin, isContinued = false) {
    const id = message.conversation;
    const run = new Run(message, {
      changed: () => this.callbacks.grown(message),
      save: () => (run.isDropped ? undefined : this.#kept(() => this.store.putMessages(message))),
    });
    this.#runs.set(id, run);
    const model = this.backend.chosen(this.model);
    if (model) message.model = model;
    const { settings } = this;
    begin();
    announce("The answer is being written.");
    try {
      await run.run(body({ path, settings, model, isContinued }));
    } catch (error) {
      // A setting that cannot be sent.
      message.state = "failed";
      message.error = { message: error.message, param: error.param ?? null };
      await this.#kept(() => this.store.putMessages(message));
    }
    this.#runs.delete(id);
    announce(message.error ? message.error.message : "The answer is complete.");
    this.backend.answered();
    if (run.failure !== null) this.callbacks.failed(message, run.failure);
    this.callbacks.changed();
  }

  async edit(message, text) {
    if (this.#isBusy()) return;
    const { role, parent, attachments } = message;
    const version = this.#message(role, parent, { content: text, ...(attachments && { attachments }) });
    this.#add(version);
    if (role === "user") await this.#answer(version.id);
  }

  async retry(message) {
    if (this.#isBusy()) return;
    const isEmpty = message.state === "failed" && !message.content && !message.calls;
    if (isEmpty) this.#take(message);
    await this.#answer(message.parent);
  }

  async goOn(message) {
    if (this.#isBusy()) return;
    await this.#generate(message, this.tree.path(message.id), () => this.callbacks.changed(), true);
  }

  async sendResults(message, results) {
    if (this.#isBusy()) return;
    let parent = message.id;
    const messages = message.calls.map(({ id }, index) => {
      const result = this.#message("tool", parent, { call: id, content: results[index] ?? "" });
      parent = result.id;
      return result;
    });
    this.#add(...messages);
    await this.#answer(parent);
  }

  // Takes a message and what follows it out of the tree and the store; gives them.
  #take(message) {
    const { run } = this;
    const removed = this.tree.remove(message.id);
    if (run && removed.includes(run.message)) {
      run.isDropped = true;
      run.stop();
    }
    const { id } = this.current;
    const leaf = this.tree.leafBehind(this.tree.get(message.parent) ? message.parent : null);
    this.current.leaf = leaf;
    this.#kept(async () => {
      await this.store.removeMessages(removed);
      await this.store.changeConversation(id, { leaf });
    });
    return removed;
  }

  remove(message) {
    const { id, leaf } = this.current;
    const removed = this.#take(message);
    this.callbacks.changed();
    const undo = async () => {
      await this.#kept(async () => {
        await this.store.putMessages(...removed);
        await this.store.changeConversation(id, { leaf });
      });
      if (this.current?.id === id) await this.open(id);
    };
    notice(removed.length > 1 ? `${removed.length} messages deleted.` : "Message deleted.", { action: { label: "Undo", run: undo } });
  }

  // Shows another version of a message; gives the message that is shown then.
  version(message, step) {
    const versions = this.tree.versions(message);
    const other = versions[versions.indexOf(message) + step];
    if (!other) return null;
    const leaf = this.tree.leafBehind(other.id);
    this.current.leaf = leaf;
    this.callbacks.changed();
    this.#changeCurrent({ leaf });
    return other;
  }

  // Whole chats ------------------------------------------------------------------------------------

  async rename(id, title) {
    if (this.current?.id === id) this.current.title = title;
    await this.#kept(() => this.store.changeConversation(id, { title }));
    await this.refresh();
  }

  // A chat with its messages.
  async whole(id) {
    return { conversation: await this.store.conversation(id), messages: await this.store.messages(id) };
  }

  async removeChats(ids) {
    const removed = [];
    await this.#kept(async () => {
      for (const id of ids) {
        const run = this.#runs.get(id);
        if (run) {
          run.isDropped = true;
          run.stop();
        }
        removed.push(await this.whole(id));
        await this.store.removeConversation(id);
      }
    });
    if (ids.includes(this.current?.id)) location.hash = "";
    await this.refresh();
    const undo = async () => {
      await this.add(removed);
      if (removed.length === 1) location.hash = removed[0].conversation.id;
    };
    notice(removed.length > 1 ? `${removed.length} chats deleted.` : "Chat deleted.", { action: { label: "Undo", run: undo } });
  }

  // Adds whole chats, as an import does.
  async add(chats) {
    await this.#kept(async () => {
      for (const { conversation, messages } of chats) await this.store.putAll(conversation, messages);
    });
    await this.refresh();
  }
}
