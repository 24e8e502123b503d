// Short notices at the page's edge, some with a button, and words for those who hear the page.
import { $, make } from "./dom.js";
import { iconButton } from "./icons.js";

const SHOWN_MS = 8000;

// Shows a notice; `action` is `{ label, run }`. Errors stay until they are closed.
export const notice = (text, { isError = false, action = null } = {}) => {
  const close = () => node.remove();
  const node = make(
    "div",
    { class: isError ? "notice error" : "notice", role: isError ? "alert" : "status" },
    make("span", {}, text),
    action && make("button", { type: "button", class: "quiet", onclick: () => { close(); action.run(); } }, action.label),
    iconButton("close", "Close this notice", close),
  );
  // The same words twice tell nothing new.
  const same = [...$("notices").children].find((other) => other.firstChild.textContent === text);
  same?.remove();
  $("notices").append(node);
  if (!isError) setTimeout(close, SHOWN_MS);
};

// Says something to screen readers only.
export const announce = (text) => {
  $("announcer").textContent = text;
};
