// The list of chats: search, rename, export, delete, and the arrow keys.
import { $, debounced, make, renew } from "./dom.js";
import { icon, iconButton } from "./icons.js";

const DAY_MS = 24 * 60 * 60 * 1000;

// How long ago a chat was used, in words.
const age = (updated, now) => {
  const today = new Date(now).setHours(0, 0, 0, 0);
  if (updated >= today) return "Today";
  if (updated >= today - DAY_MS) return "Yesterday";
  if (updated >= today - 7 * DAY_MS) return "Last week";
  return "Older";
};

export class Side {
  #conversations = [];
  #current = null;
  #running = new Set();
  // Ids of the chats in whose messages the wanted text is, or null without one.
  #containing = null;
  #menu = null;

  // `actions`: open(id), create(), rename(id, title), remove(id), save(id), containing(text).
  constructor(actions) {
    this.actions = actions;
    $("new").append(icon("plus"), "New chat");
    $("menu").append(icon("menu"));
    $("close-side").append(icon("close"));
    $("search").before(icon("search"));
    $("new").addEventListener("click", () => actions.create());
    $("menu").addEventListener("click", () => this.setOpen(true));
    $("close-side").addEventListener("click", () => this.setOpen(false));
    $("scrim").addEventListener("click", () => this.setOpen(false));
    $("search").addEventListener("input", debounced(150, () => this.#search()));
    $("search").addEventListener("keydown", (event) => this.#searchKey(event));
    $("chats").addEventListener("keydown", (event) => this.#arrow(event));
    document.addEventListener("pointerdown", (event) => {
      if (this.#menu && !this.#menu.contains(event.target)) this.#closeMenu();
    });
    this.narrow = matchMedia("(max-width: 48rem)");
    this.narrow.addEventListener("change", () => this.setOpen(false));
    this.setOpen(false);
  }

  get isOpen() {
    return document.body.classList.contains("side-open");
  }

  // On a narrow page the list lies over the chat.
  setOpen(isOpen) {
    const covers = isOpen && this.narrow.matches;
    const wasOpen = this.isOpen;
    document.body.classList.toggle("side-open", covers);
    $("scrim").hidden = !covers;
    $("menu").setAttribute("aria-expanded", String(covers));
    document.querySelector("main").inert = covers;
    $("side").inert = this.narrow.matches && !covers;
    if (covers) $("close-side").focus();
    else if (wasOpen) $("menu").focus();
  }

  focusSearch() {
    this.setOpen(true);
    $("search").focus();
    $("search").select();
  }

  show(conversations, current, running) {
    this.#conversations = conversations;
    this.#current = current;
    this.#running = running;
    this.#render();
  }

  async #search() {
    const text = $("search").value.trim();
    this.#containing = text ? await this.actions.containing(text) : null;
    // Another letter may have been typed meanwhile.
    if ($("search").value.trim() === text) this.#render();
  }

  #found() {
    const text = $("search").value.trim().toLowerCase();
    if (!text) return this.#conversations;
    return this.#conversations.filter(({ id, title }) => title.toLowerCase().includes(text) || this.#containing?.has(id));
  }

  #render() {
    if ($("chats").querySelector("input")) return;
    const groups = Map.groupBy(this.#found(), ({ updated }) => age(updated, Date.now()));
    const nodes = [...groups].map(([name, list]) =>
      make("section", {}, make("h2", {}, name), make("ul", {}, list.map((each) => this.#item(each)))));
    const isSearch = $("search").value.trim() !== "";
    const nothing = make("p", { class: "hint" }, isSearch ? "Nothing found." : "Chats are kept in this browser.");
    renew($("chats"), nodes.length ? nodes : [nothing]);
  }

  #find(id) {
    return [...$("chats").querySelectorAll("li")].find((item) => item.dataset.id === id);
  }

  #item({ id, title }) {
    const isCurrent = id === this.#current;
    const link = make("a", { href: `#${id}`, "aria-current": isCurrent && "page", title }, title);
    link.addEventListener("click", () => this.setOpen(false));
    const more = iconButton("more", `More about ${title}`, (event) => this.#openMenu(event.currentTarget, id), { "aria-haspopup": "menu" });
    const dot = this.#running.has(id) && make("span", { class: "dot", title: "An answer is being written" });
    return make("li", { class: isCurrent && "current", "data-id": id }, link, dot, more);
  }

  #openMenu(button, id) {
    const wasHere = this.#menu?.previousElementSibling === button;
    this.#closeMenu();
    if (wasHere) return;
    const item = (name, label, run) =>
      make("button", { type: "button", role: "menuitem", onclick: () => { this.#closeMenu(); run(); } }, icon(name), label);
    this.#menu = make(
      "div",
      { class: "menu", role: "menu" },
      item("edit", "Rename", () => this.#rename(id)),
      item("download", "Export", () => this.actions.save(id)),
      item("trash", "Delete", () => this.actions.remove(id)),
    );
    this.#menu.addEventListener("keydown", (event) => {
      const items = [...this.#menu.children];
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        event.stopPropagation();
        items.at((items.indexOf(document.activeElement) + step) % items.length).focus();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        this.#closeMenu();
        button.focus();
      }
    });
    button.after(this.#menu);
    this.#menu.firstChild.focus();
    this.#menu.scrollIntoView({ block: "nearest" });
  }

  #closeMenu() {
    this.#menu?.remove();
    this.#menu = null;
  }

  #rename(id) {
    const item = this.#find(id);
    const { title } = this.#conversations.find((each) => each.id === id);
    const field = make("input", { class: "rename", "aria-label": "Name of the chat", maxlength: 200 });
    field.value = title;
    let isOver = false;
    const end = (text) => {
      if (isOver) return;
      isOver = true;
      field.remove();
      if (text && text !== title) this.actions.rename(id, text);
      else this.#render();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(field.value.trim());
      else if (event.key === "Escape") {
        event.stopPropagation();
        end(null);
      }
    });
    field.addEventListener("blur", () => end(field.value.trim()));
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  #links() {
    return [...$("chats").querySelectorAll("a")];
  }

  #searchKey(event) {
    const [first] = this.#links();
    if (event.key === "Escape" && $("search").value) {
      event.stopPropagation();
      $("search").value = "";
      this.#search();
    } else if (event.key === "ArrowDown" && first) {
      event.preventDefault();
      first.focus();
    } else if (event.key === "Enter" && first) first.click();
  }

  #arrow(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = this.#links();
    const at = links.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    if (at + step < 0) $("search").focus();
    else links[at + step]?.focus();
  }
}
