// Pictures sent from where they are shown to where they are used.
import { notice } from "./notices.js";
import { blobOf } from "./pictures.js";

// Where pictures can go: a name, and a function that takes a blob (and the picture). Panes add theirs.
export class Sender {
  #places = new Map();

  add(where, take) {
    this.#places.set(where, take);
  }

  has(where) {
    return this.#places.has(where);
  }

  // Forgets places of what a model does not have.
  remove(where) {
    this.#places.delete(where);
  }

  async send(picture, where) {
    const take = this.#places.get(where);
    if (!take) throw new Error(`There is no place called ${where}.`);
    // What a picture was made with may be known without the picture.
    const blob = where === "text" && picture.parameters ? null : await blobOf(picture);
    await take(blob, picture);
    notice("Sent.");
  }
}
