// Where a message is written: text, files by button, drop and paste, and the buttons that send and stop.
import { attachment, thumbnail } from "./attachments.js";
import { $, make } from "./dom.js";
import { icon } from "./icons.js";
import { notice } from "./notices.js";

const fileList = (transfer) => [...(transfer?.files ?? [])];

export class Composer {
  #attachments = [];
  // The chat that is written to, and what was begun in others.
  #chat = "";
  #begun = new Map();

  // `actions`: send(text, attachments) gives whether it was taken, stop(), editLast(), takes() what the model takes.
  constructor(actions) {
    this.actions = actions;
    $("send").append(icon("send"));
    $("stop").append(icon("stop"));
    $("attach").append(icon("attach"));
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    $("stop").addEventListener("click", () => actions.stop());
    $("input").addEventListener("keydown", (event) => this.#key(event));
    $("input").addEventListener("input", () => this.#grow());
    $("input").addEventListener("paste", (event) => this.#paste(event));
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => {
      this.add([...$("files").files]);
      $("files").value = "";
    });
    this.#listenForDrops();
  }

  // Another chat: what was begun in it, if anything.
  open(chat) {
    this.#begun.set(this.#chat, { text: $("input").value, attachments: this.#attachments });
    this.#chat = chat;
    this.#set(this.#begun.get(chat) ?? { text: "", attachments: [] });
  }

  // The new chat has its name now.
  adopt(chat) {
    this.#chat = chat;
  }

  #set({ text, attachments }) {
    this.#attachments = attachments;
    $("input").value = text;
    this.#show();
    this.#grow();
  }

  focus() {
    // A phone's keyboard would cover what is to be read.
    if (matchMedia("(hover: hover)").matches) $("input").focus({ preventScroll: true });
  }

  setRunning(isRunning) {
    const hadFocus = [$("send"), $("stop")].includes(document.activeElement);
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
    if (hadFocus) $("input").focus();
  }

  setReady(isReady) {
    $("send").disabled = !isReady;
  }

  async add(files) {
    for (const file of files) {
      try {
        this.#attachments.push(await attachment(file, this.actions.takes()));
      } catch (error) {
        notice(error.message, { isError: true });
      }
    }
    this.#show();
  }

  #show() {
    const views = this.#attachments.map((each) =>
      thumbnail(each, () => {
        this.#attachments = this.#attachments.filter((other) => other !== each);
        this.#show();
        $("input").focus();
      }));
    $("attachments").replaceChildren(...views);
  }

  async #send() {
    const text = $("input").value.trim();
    if (!(text || this.#attachments.length) || $("send").disabled || $("send").hidden) return;
    const attachments = this.#attachments;
    this.#begun.delete(this.#chat);
    this.#set({ text: "", attachments: [] });
    await this.actions.send(text, attachments);
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && $("input").value === "" && this.actions.editLast()) {
      event.preventDefault();
    }
  }

  #grow() {
    const input = $("input");
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight}px`;
  }

  #paste(event) {
    const files = fileList(event.clipboardData);
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  #listenForDrops() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    let hide;
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      $("drop").hidden = false;
      // dragover comes again and again as long as files are held over the page.
      clearTimeout(hide);
      hide = setTimeout(() => ($("drop").hidden = true), 300);
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      $("drop").hidden = true;
      this.add(fileList(event.dataTransfer));
    });
  }
}

// How much of the context is used.
export const showContext = (used, context) => {
  const box = $("context");
  if (!used) return box.replaceChildren();
  const number = (value) => Math.round(value).toLocaleString("en");
  const words = context ? `${number(used)} of ${number(context)} tokens` : `${number(used)} tokens`;
  const bar = context && make("meter", { min: 0, max: context, value: Math.min(used, context), high: context * 0.9, "aria-label": "Context" });
  return box.replaceChildren(...[bar, make("span", {}, words)].filter(Boolean));
};
