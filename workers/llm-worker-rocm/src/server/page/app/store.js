// The chats that this browser keeps. Each message is a record of its own, so that tabs which work on the same chat add
// to it and never overwrite each other; a record that cannot be read is left out, and left where it is.
import { openDisk } from "./disk.js";
import { readConversation, readMessage } from "./records.js";

const sound = (records, read) => records.map((record) => read(record)).filter(Boolean);

export class Store {
  #disk;
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("chats") : null;

  static async open() {
    const { disk, reason } = await openDisk();
    return new Store(disk, reason);
  }

  // `reason`: why nothing is kept beyond this visit, or null.
  constructor(disk, reason) {
    this.#disk = disk;
    this.reason = reason;
  }

  // Calls back with the id of a chat that another tab has changed.
  onChange(callback) {
    this.#channel?.addEventListener("message", ({ data }) => callback(data));
  }

  // All chats, the newest first.
  async conversations() {
    const found = sound(await this.#disk.all("conversations"), readConversation);
    return found.sort((a, b) => b.updated - a.updated);
  }

  async conversation(id) {
    return readConversation(await this.#disk.get("conversations", id));
  }

  async messages(id) {
    const found = sound(await this.#disk.messagesOf(id), readMessage);
    return found.sort((a, b) => a.created - b.created);
  }

  // The ids of the chats that have a message with this text.
  async containing(text) {
    const wanted = text.toLowerCase();
    const found = sound(await this.#disk.all("messages"), readMessage);
    return new Set(found.filter(({ content }) => content.toLowerCase().includes(wanted)).map((m) => m.conversation));
  }

  async putConversation(conversation) {
    await this.#disk.put([["conversations", conversation]]);
    this.#tell(conversation.id);
  }

  async changeConversation(id, fields) {
    await this.#disk.change("conversations", id, fields);
    this.#tell(id);
  }

  async putMessages(...messages) {
    await this.#disk.put(messages.map((message) => ["messages", message]));
    this.#tell(messages[0]?.conversation);
  }

  async removeMessages(messages) {
    await this.#disk.remove(messages.map(({ id }) => ["messages", id]));
    this.#tell(messages[0]?.conversation);
  }

  // Puts a chat with all its messages.
  async putAll(conversation, messages) {
    const records = messages.map((message) => ["messages", message]);
    await this.#disk.put([["conversations", conversation], ...records]);
    this.#tell(conversation.id);
  }

  async removeConversation(id) {
    const messages = await this.#disk.messagesOf(id);
    const keys = messages.map((message) => ["messages", message.id]);
    await this.#disk.remove([["conversations", id], ...keys]);
    this.#tell(id);
  }

  #tell(id) {
    this.#channel?.postMessage(id);
  }
}
