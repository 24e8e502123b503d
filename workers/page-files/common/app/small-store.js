// Small values: in this browser (`local`) or until the tab is closed (`session`). A browser that keeps nothing forgets
// them at the end of the visit.

class Small {
  #storage;
  #memory = new Map();

  constructor(storage) {
    this.#storage = storage;
  }

  get(name) {
    try {
      return this.#storage().getItem(name) ?? this.#memory.get(name) ?? null;
    } catch {
      return this.#memory.get(name) ?? null;
    }
  }

  set(name, value) {
    this.#memory.delete(name);
    try {
      if (value === null) this.#storage().removeItem(name);
      else this.#storage().setItem(name, value);
    } catch {
      if (value !== null) this.#memory.set(name, value);
    }
  }

  // A value that is kept as JSON; `otherwise` if there is none or it is damaged.
  json(name, otherwise) {
    try {
      return JSON.parse(this.get(name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  }
}

export const local = new Small(() => localStorage);
export const session = new Small(() => sessionStorage);
