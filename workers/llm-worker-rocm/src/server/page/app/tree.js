// The messages of a chat as a tree: what is edited or asked again is a new branch beside the old one. A parent that is
// missing, or that leads in a circle, makes a message a root.

export class Tree {
  #messages = new Map();
  #parents = new Map();
  #children = new Map();

  constructor(messages = []) {
    for (const message of messages) this.#messages.set(message.id, message);
    for (const { id, parent } of messages) this.#parents.set(id, this.#messages.has(parent) ? parent : null);
    this.#cutCircles();
    for (const { id } of messages) this.#siblings(id).push(id);
  }

  #cutCircles() {
    const sound = new Set([null]);
    for (const start of this.#parents.keys()) {
      const walked = new Set();
      let id = start;
      while (!sound.has(id) && !walked.has(id)) {
        walked.add(id);
        id = this.#parents.get(id);
      }
      if (!sound.has(id)) this.#parents.set(id, null);
      for (const each of walked) sound.add(each);
    }
  }

  // Messages with the same parent.
  #siblings(id) {
    const parent = this.#parents.get(id);
    if (!this.#children.has(parent)) this.#children.set(parent, []);
    return this.#children.get(parent);
  }

  get(id) {
    return this.#messages.get(id) ?? null;
  }

  all() {
    return [...this.#messages.values()];
  }

  add(message) {
    const { id, parent } = message;
    const isNew = !this.#messages.has(id);
    this.#messages.set(id, message);
    if (!isNew) return;
    this.#parents.set(id, this.#messages.has(parent) && parent !== id ? parent : null);
    this.#siblings(id).push(id);
  }

  // Takes a message and all that follows it out; gives them, the message first.
  remove(id) {
    const siblings = this.#siblings(id);
    siblings.splice(siblings.indexOf(id), 1);
    const removed = [];
    const waiting = [id];
    while (waiting.length) {
      const next = waiting.pop();
      removed.push(this.#messages.get(next));
      waiting.push(...(this.#children.get(next) ?? []));
      this.#messages.delete(next);
      this.#parents.delete(next);
      this.#children.delete(next);
    }
    return removed;
  }

  // All versions of a message, itself included, the oldest first.
  versions({ id }) {
    return this.#siblings(id).map((each) => this.#messages.get(each));
  }

  // The last message of the newest branch behind this one; null begins at the top.
  leafBehind(id) {
    let leaf = id;
    for (let next = leaf; next !== undefined; next = this.#children.get(leaf)?.at(-1)) leaf = next;
    return leaf;
  }

  // The messages that lead to this one, itself included.
  path(leaf) {
    const path = [];
    for (let id = leaf; this.#messages.has(id); id = this.#parents.get(id)) path.push(this.#messages.get(id));
    return path.reverse();
  }
}
