// Where chats are: IndexedDB, or memory where the browser has none to give. Both have the same methods, and know
// nothing of what the records mean.

const NAME = "chats";
const VERSION = 1;
// A browser that never answers is one that keeps nothing.
const PATIENCE_MS = 5000;

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

class Disk {
  #database;

  constructor(database) {
    this.#database = database;
  }

  #begin(mode) {
    return this.#database.transaction(["conversations", "messages"], mode);
  }

  async #begun(mode) {
    try {
      return this.#begin(mode);
    } catch (error) {
      // The browser has closed it, as when its owner clears what is kept.
      if (error.name !== "InvalidStateError") throw error;
      this.#database = await opened();
      return this.#begin(mode);
    }
  }

  async #transaction(mode, work) {
    const transaction = await this.#begun(mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("not saved"));
    });
    // Whoever fails first tells why.
    done.catch(() => {});
    const result = await work((name) => transaction.objectStore(name));
    await done;
    return result;
  }

  all(name) {
    return this.#transaction("readonly", (store) => promised(store(name).getAll()));
  }

  get(name, id) {
    return this.#transaction("readonly", (store) => promised(store(name).get(id)));
  }

  messagesOf(id) {
    return this.#transaction("readonly", (store) => promised(store("messages").index("conversation").getAll(id)));
  }

  // Puts records, all or none.
  put(records) {
    return this.#transaction("readwrite", (store) =>
      Promise.all(records.map(([name, record]) => promised(store(name).put(record)))));
  }

  // Changes some fields of a record that is there: another tab may have changed others in the meantime.
  change(name, id, fields) {
    return this.#transaction("readwrite", async (store) => {
      const record = await promised(store(name).get(id));
      if (record) await promised(store(name).put({ ...record, ...fields }));
    });
  }

  remove(keys) {
    return this.#transaction("readwrite", (store) =>
      Promise.all(keys.map(([name, id]) => promised(store(name).delete(id)))));
  }
}

class Memory {
  #stores = { conversations: new Map(), messages: new Map() };

  async all(name) {
    return [...this.#stores[name].values()].map((record) => structuredClone(record));
  }

  async get(name, id) {
    return structuredClone(this.#stores[name].get(id));
  }

  async messagesOf(id) {
    return (await this.all("messages")).filter(({ conversation }) => conversation === id);
  }

  async put(records) {
    for (const [name, record] of records) this.#stores[name].set(record.id, structuredClone(record));
  }

  async change(name, id, fields) {
    const record = this.#stores[name].get(id);
    if (record) Object.assign(record, structuredClone(fields));
  }

  async remove(keys) {
    for (const [name, id] of keys) this.#stores[name].delete(id);
  }
}

const opened = async () => {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("conversations", { keyPath: "id" });
    request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
  };
  const patience = new Promise((_, reject) => {
    request.onblocked = () => reject(new Error("another tab holds the store"));
    setTimeout(() => reject(new Error("the store does not open")), PATIENCE_MS);
  });
  const database = await Promise.race([promised(request), patience]);
  // Another tab has a newer page, which needs another form.
  database.onversionchange = () => database.close();
  return database;
};

// The disk, or memory and why it is that.
export const openDisk = async () => {
  try {
    return { disk: new Disk(await opened()), reason: null };
  } catch (error) {
    return { disk: new Memory(), reason: error?.message || "this browser has no IndexedDB" };
  }
};
