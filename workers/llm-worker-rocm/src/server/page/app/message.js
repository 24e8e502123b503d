// One message of a chat, with what can be done with it.
import { shown } from "./attachments.js";
import { callView } from "./calls.js";
import { copyText, count, make, present, renew } from "./dom.js";
import { Editor } from "./editor.js";
import { fieldOf } from "./fields.js";
import { icon, iconButton } from "./icons.js";
import { MarkdownView } from "./markdown.js";
import { notice } from "./notices.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const ENDS = { stopped: "Stopped", length: "Cut off at the limit", running: "Interrupted" };

const tokens = (number) => (number === 1 ? "1 token" : `${count(number)} tokens`);

const copy = async (text, button) => {
  try {
    await copyText(text);
    button.replaceChildren(icon("check"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  } catch (error) {
    notice(error.message, { isError: true });
  }
};

export class MessageView {
  #message = null;
  #state = {};
  #editor = null;
  // What a message shows only if it has it, made when first needed.
  #thoughts = null;
  #text = null;
  #calls = [];
  // The message whose fixed content is shown.
  #shown = null;
  #sending = null;
  // The error that is shown, and its node.
  #failure = { error: null, node: null };

  // `actions` are those of the chat; `isPlain` shows text as it is.
  constructor(actions, isPlain) {
    this.actions = actions;
    this.isPlain = isPlain;
    this.body = make("div", { class: "body" });
    this.foot = make("div", { class: "foot" });
    this.node = make("article", { class: "message" }, this.body, this.foot);
  }

  // Shows a message. `state`: whether it is being written, its place among its versions, what comes behind it.
  update(message, state) {
    this.#message = message;
    this.#state = state;
    this.node.className = `message ${message.role}${state.isRunning ? " running" : ""}`;
    this.node.dataset.id = message.id;
    this.node.setAttribute("aria-label", NAMES[message.role]);
    this.node.setAttribute("aria-busy", String(state.isRunning));
    if (this.#editor) return;
    this.#showBody();
    this.#showFoot();
  }

  edit() {
    const { role, content } = this.#message;
    const done = () => {
      this.#editor = null;
      this.#text = null;
      this.#shown = null;
      this.body.replaceChildren();
      this.update(this.#message, this.#state);
    };
    this.#editor = new Editor(content, role === "user" ? "Send" : "Save", {
      save: (text) => {
        done();
        this.actions.edit(this.#message, text);
      },
      cancel: () => {
        done();
        this.node.querySelector("[data-action=edit]")?.focus();
      },
    });
    this.#thoughts = null;
    this.#calls = [];
    this.body.replaceChildren(this.#editor.node);
    this.foot.replaceChildren();
    this.#editor.focus();
  }

  #showBody() {
    if (this.#message.role === "assistant") return this.#showAnswer();
    // Others never change.
    if (this.#shown === this.#message) return undefined;
    this.#shown = this.#message;
    return this.#message.role === "user" ? this.#showUser() : this.#showTool();
  }

  #showUser() {
    const { content, attachments = [] } = this.#message;
    const files = attachments.length > 0 && make("div", { class: "files" }, attachments.map(shown));
    this.body.replaceChildren(...present([files, content && make("div", { class: "bubble" }, content)]));
  }

  #showTool() {
    const { content } = this.#message;
    this.body.replaceChildren(make(
      "details",
      { class: "fold" },
      make("summary", {}, icon("tool"), make("span", {}, "Result"), make("span", { class: "preview" }, content.slice(0, 120))),
      make("pre", { tabindex: 0 }, content),
    ));
  }

  #showAnswer() {
    const { reasoning, content, calls = [] } = this.#message;
    const { isRunning } = this.#state;
    const parts = [];
    if (reasoning) {
      const isThinking = isRunning && !content && calls.length === 0;
      this.#thoughts ??= this.#thoughtsView();
      this.#thoughts.title.textContent = isThinking ? "Thinking" : "Thoughts";
      this.#thoughts.view.show(reasoning, !isThinking);
      parts.push(this.#thoughts.node);
    }
    if (content) {
      this.#text ??= this.#textView();
      this.#text.show(content, !isRunning);
      parts.push(this.#text.node);
    }
    calls.forEach((call, index) => {
      this.#calls[index] ??= callView();
      this.#calls[index].show(call, { isRunning, hasResult: this.#state.hasResult });
      parts.push(this.#calls[index].node);
    });
    if (calls.length && !isRunning && this.#state.isLast) parts.push(this.#sendResults());
    if (isRunning && parts.length === 0) parts.push(make("span", { class: "waiting", "aria-label": "Waiting" }));
    parts.push(this.#error());
    const nodes = present(parts);
    // Nodes that stay keep their focus and what is selected in them.
    const isSame = nodes.length === this.body.children.length && nodes.every((node, index) => node === this.body.children[index]);
    if (!isSame) this.body.replaceChildren(...nodes);
  }

  #thoughtsView() {
    const text = make("div", { class: "text" });
    const title = make("span");
    const node = make("details", { class: "fold thoughts" }, make("summary", {}, icon("thought"), title), text);
    return { node, title, view: this.#view(text) };
  }

  #textView() {
    const node = make("div", { class: "text" });
    const view = this.#view(node);
    return { node, show: (text, isComplete) => view.show(text, isComplete) };
  }

  #view(box) {
    return this.isPlain ? { show: (text) => box.replaceChildren(make("p", { class: "plain" }, text)) } : new MarkdownView(box);
  }

  #sendResults() {
    const send = () => this.actions.sendResults(this.#message, this.#calls.map((view) => view.result()));
    this.#sending ??= make("button", { type: "button", class: "primary send-results", onclick: send }, "Send results");
    return this.#sending;
  }

  #error() {
    const { error, state } = this.#message;
    if (!error || state !== "failed") return null;
    if (this.#failure.error !== error) this.#failure = { error, node: this.#errorView(error) };
    return this.#failure.node;
  }

  #errorView(error) {
    const field = fieldOf(error);
    const open = () => this.actions.openSettings(field, error.message);
    const settings = field && make("button", { type: "button", class: "quiet", onclick: open }, "Open settings");
    return make("div", { class: "error", role: "alert" }, icon("alert"), make("span", {}, error.message), settings);
  }

  #showFoot() {
    const { isRunning } = this.#state;
    renew(this.foot, present(isRunning ? [] : [this.#versions(), this.#buttons(), this.#end(), this.#figures()]));
  }

  #versions() {
    const { version, versions } = this.#state;
    if (versions < 2) return null;
    const step = (by) => () => this.actions.version(this.#message, by);
    return make(
      "span",
      { class: "versions" },
      iconButton("left", "Version before this", step(-1), { disabled: version === 0 }),
      make("span", { "aria-label": `Version ${version + 1} of ${versions}` }, `${version + 1}/${versions}`),
      iconButton("right", "Version after this", step(1), { disabled: version === versions - 1 }),
    );
  }

  #buttons() {
    const { role, content, calls, state } = this.#message;
    const isAnswer = role === "assistant";
    const canContinue = isAnswer && content && !calls && ["stopped", "length", "failed", "running"].includes(state);
    const button = (name, action, label, run) => iconButton(name, label, run, { "data-action": action });
    return make(
      "span",
      { class: "actions" },
      canContinue && this.#state.isLast && make(
        "button",
        { type: "button", class: "quiet small", "data-action": "continue", onclick: () => this.actions.goOn(this.#message) },
        icon("forward"),
        "Continue",
      ),
      content && button("copy", "copy", "Copy", (event) => copy(this.#message.content, event.currentTarget)),
      !calls && role !== "tool" && button("edit", "edit", "Edit", () => this.edit()),
      isAnswer && button("retry", "retry", "Answer again", () => this.actions.retry(this.#message)),
      button("trash", "delete", "Delete from here on", () => this.actions.remove(this.#message)),
    );
  }

  #end() {
    const words = ENDS[this.#message.state];
    return this.#message.role === "assistant" && words && make("span", { class: "figures" }, words);
  }

  #figures() {
    const { figures } = this.#message;
    if (!figures) return null;
    const { generated, perSecond, prompt, cached, promptMs } = figures;
    const details = `Prompt: ${tokens(prompt)}, ${count(cached)} of them cached, in ${(promptMs / 1000).toFixed(2)} s`;
    return make("span", { class: "figures", title: details }, `${tokens(generated)}, ${perSecond.toFixed(1)} tokens/s`);
  }
}
