// Calls of tools: what the model asks for, and a field for the result, which a person gives.
import { make } from "./dom.js";
import { icon } from "./icons.js";

const LONGEST_PRETTY = 100_000;

const pretty = (text) => {
  if (text.length > LONGEST_PRETTY) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
};

export const callView = () => {
  const title = make("span");
  const preview = make("span", { class: "preview" });
  const content = make("pre", { tabindex: 0 });
  const result = make("textarea", { rows: 2, class: "result", placeholder: "The result, by hand", "aria-label": "Result of this call" });
  const fold = make("details", { class: "fold call" }, make("summary", {}, icon("tool"), title, preview), content);
  return {
    node: make("div", {}, fold, result),
    result: () => result.value,
    show: (call, { isRunning, hasResult }) => {
      title.textContent = call.name ? `Calls ${call.name}` : "Calls a tool";
      preview.textContent = call.arguments.slice(0, 120);
      content.textContent = isRunning ? call.arguments : pretty(call.arguments);
      result.hidden = isRunning || hasResult;
    },
  };
};
