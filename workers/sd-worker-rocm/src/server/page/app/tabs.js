// The panes and their tabs, as the pattern of tabs asks: arrows move between them, and the address names the open one.
import { $, make } from "./dom.js";

export class Tabs {
  #panes = [];
  #current = null;
  #opened;

  // `opened(id)` is called after each change.
  constructor(opened) {
    this.#opened = opened;
    const nav = $("tabs");
    nav.addEventListener("keydown", (event) => {
      const shown = this.#panes.filter(({ tab }) => !tab.hidden);
      const at = shown.findIndex(({ id }) => id === this.#current);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = shown[(to + shown.length) % shown.length];
      this.open(next.id);
      next.tab.focus();
    });
    window.addEventListener("hashchange", () => this.#fromAddress());
  }

  // A pane; several may show the same section.
  add(id, label, section) {
    const tab = make("button", {
      type: "button",
      role: "tab",
      id: `tab-${id}`,
      "aria-controls": section.id,
      "aria-selected": "false",
      tabindex: -1,
      onclick: () => this.open(id),
    });
    tab.textContent = label;
    section.setAttribute("role", "tabpanel");
    section.hidden = true;
    $("tabs").append(tab);
    this.#panes.push({ id, section, tab });
  }

  // Shows or hides a tab; where the open one goes, the first one that is left is opened.
  offer(id, isOffered) {
    const pane = this.#panes.find((each) => each.id === id);
    pane.tab.hidden = !isOffered;
    if (!isOffered && this.#current === id) this.open(this.#panes.find(({ tab }) => !tab.hidden).id);
  }

  get current() {
    return this.#current;
  }

  open(id) {
    const pane = this.#panes.find((each) => each.id === id && !each.tab.hidden);
    if (!pane || id === this.#current) return;
    this.#current = id;
    for (const { section, tab, id: other } of this.#panes) {
      tab.setAttribute("aria-selected", String(other === id));
      tab.tabIndex = other === id ? 0 : -1;
      if (section !== pane.section) section.hidden = true;
    }
    pane.section.hidden = false;
    pane.section.setAttribute("aria-labelledby", pane.tab.id);
    if (location.hash.slice(1) !== id) history.replaceState(null, "", `#${id}`);
    pane.tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.#opened(id);
  }

  // Opens the pane that the address names, or else the first.
  start() {
    this.#fromAddress();
    if (this.#current === null) this.open(this.#panes.find(({ tab }) => !tab.hidden).id);
  }

  #fromAddress() {
    this.open(location.hash.slice(1));
  }
}
