// Where pictures and requests are kept in this browser: IndexedDB, or memory where the browser has none to give. Both
// have the same methods, and know nothing of what the records mean. Other tabs of the page hear of changes.

const NAME = "images";
const VERSION = 1;
// pictures: what is known of each, with a small one of it; files: the pictures and videos themselves; gone: what was
// deleted here; jobs: those of this browser; history: requests; grids: tables of pictures.
const STORES = ["pictures", "files", "gone", "jobs", "history", "grids"];
// A browser that never answers is one that keeps nothing.
const PATIENCE_MS = 5000;

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

class Database {
  #database;

  constructor(database) {
    this.#database = database;
  }

  async #begun(mode) {
    try {
      return this.#database.transaction(STORES, mode);
    } catch (error) {
      // The browser has closed it, as when its owner clears what is kept.
      if (error.name !== "InvalidStateError") throw error;
      this.#database = await opened();
      return this.#database.transaction(STORES, mode);
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

  put(records) {
    return this.#transaction("readwrite", (store) =>
      Promise.all(records.map(([name, record]) => promised(store(name).put(record)))),
    );
  }

  change(name, id, fields) {
    return this.#transaction("readwrite", async (store) => {
      const record = await promised(store(name).get(id));
      if (record) await promised(store(name).put({ ...record, ...fields }));
    });
  }

  remove(keys) {
    return this.#transaction("readwrite", (store) =>
      Promise.all(keys.map(([name, id]) => promised(store(name).delete(id)))),
    );
  }
}

class Memory {
  #stores = Object.fromEntries(STORES.map((name) => [name, new Map()]));

  async all(name) {
    return [...this.#stores[name].values()].map((record) => ({ ...record }));
  }

  async get(name, id) {
    const record = this.#stores[name].get(id);
    return record && { ...record };
  }

  async put(records) {
    for (const [name, record] of records) this.#stores[name].set(record.id, { ...record });
  }

  async change(name, id, fields) {
    const record = this.#stores[name].get(id);
    if (record) Object.assign(record, fields);
  }

  async remove(keys) {
    for (const [name, id] of keys) this.#stores[name].delete(id);
  }
}

const opened = async () => {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    for (const name of STORES) request.result.createObjectStore(name, { keyPath: "id" });
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

class Disk {
  #inner;
  #channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null;
  #listeners = new Set();
  // Why nothing outlives the tab; null if it does.
  reason;

  constructor(inner, reason) {
    this.#inner = inner;
    this.reason = reason;
    if (this.#channel && !reason) {
      this.#channel.onmessage = ({ data }) => this.#listeners.forEach((listener) => listener(data));
    }
  }

  // `listener(names of stores)` hears what other tabs have changed.
  onForeignChange(listener) {
    this.#listeners.add(listener);
  }

  all(name) {
    return this.#inner.all(name);
  }

  get(name, id) {
    return this.#inner.get(name, id);
  }

  // Puts records ([store, record]…), all or none.
  put(records) {
    return this.#changed(records, () => this.#inner.put(records));
  }

  // Changes some fields of a record that is there: another tab may have changed others in the meantime.
  change(name, id, fields) {
    return this.#changed([[name]], () => this.#inner.change(name, id, fields));
  }

  // Removes records ([store, id]…), all or none.
  remove(keys) {
    return this.#changed(keys, () => this.#inner.remove(keys));
  }

  async #changed(records, work) {
    if (!records.length) return;
    await work();
    this.#channel?.postMessage([...new Set(records.map(([name]) => name))]);
  }
}

const open = async () => {
  try {
    return new Disk(new Database(await opened()), null);
  } catch (error) {
    return new Disk(new Memory(), error?.message || "this browser has no IndexedDB");
  }
};

export const disk = await open();
