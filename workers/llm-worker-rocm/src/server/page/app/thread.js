// The messages of the chat that is open, and where its reader is.
import { $ } from "./dom.js";
import { icon } from "./icons.js";
import { MessageView } from "./message.js";

// Pixels from the end that still count as being there.
const NEAR = 80;

export class Thread {
  #views = new Map();
  #isFollowing = true;
  #scheduled = false;
  // Milliseconds to wait before what is being written is shown again.
  #pause = 0;

  constructor(actions) {
    this.actions = actions;
    this.box = $("messages");
    this.box.addEventListener("scroll", () => {
      this.#isFollowing = this.#distance() < NEAR;
      $("to-end").hidden = this.#isFollowing;
    }, { passive: true });
    $("to-end").append(icon("down"));
    $("to-end").addEventListener("click", () => this.toEnd());
    // What comes in late (pictures, formulas) does not move the end away.
    new ResizeObserver(() => this.#follow()).observe(this.box);
  }

  #distance() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
  }

  #follow() {
    if (this.#isFollowing) this.box.scrollTop = this.box.scrollHeight;
  }

  toEnd() {
    this.#isFollowing = true;
    this.#follow();
    $("to-end").hidden = true;
  }

  clear() {
    this.#views.clear();
    this.box.replaceChildren();
    $("to-end").hidden = true;
  }

  // Shows messages; `stateOf` gives what each view needs to know. Views of messages that stay are kept.
  show(path, stateOf, isPlain = false) {
    const ids = new Set(path.map(({ id }) => id));
    for (const [id, view] of this.#views) {
      if (ids.has(id)) continue;
      view.node.remove();
      this.#views.delete(id);
    }
    let before = null;
    for (const message of path) {
      const view = this.#views.get(message.id) ?? new MessageView(this.actions, isPlain);
      this.#views.set(message.id, view);
      const place = before ? before.nextSibling : this.box.firstChild;
      if (view.node !== place) this.box.insertBefore(view.node, place);
      view.update(message, stateOf(message));
      before = view.node;
    }
    this.#follow();
  }

  // Shows a message that has grown, soon: what takes long to show is shown less often, so that the page stays usable.
  grow(message, stateOf) {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const show = () => {
      this.#scheduled = false;
      const start = performance.now();
      this.#views.get(message.id)?.update(message, stateOf(message));
      this.#follow();
      this.#pause = 3 * (performance.now() - start);
    };
    // Frames do not come to a page that nobody sees.
    setTimeout(() => (document.hidden ? show() : requestAnimationFrame(show)), this.#pause);
  }

  view(id) {
    return this.#views.get(id);
  }
}
