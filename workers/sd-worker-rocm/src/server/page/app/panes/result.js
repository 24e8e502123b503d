// A picture that a tool has made: shown, sent on, saved.
import { make } from "../dom.js";
import { sendMenu } from "../results.js";

// Fills `place`; the picture before it is forgotten.
export const showResult = (place, blob, { name, alt }, context) => {
  const old = place.querySelector("img");
  if (old) URL.revokeObjectURL(old.src);
  const url = URL.createObjectURL(blob);
  const image = make("img", { src: url, alt });
  const size = make("span", { class: "hint" });
  image.addEventListener("load", () => {
    size.textContent = `${image.naturalWidth} x ${image.naturalHeight}`;
  });
  const tools = make("figcaption", {}, size, sendMenu({ blob }, context), make("a", { class: "button small", href: url, download: name }, "Save"));
  place.replaceChildren(make("figure", {}, image, tools));
};

// Runs work for a button: it is disabled meanwhile, `status` says what is going on and what went wrong.
export const busy = async (button, status, words, work) => {
  button.disabled = true;
  status.classList.remove("error");
  status.textContent = words;
  const begun = performance.now();
  try {
    await work();
    status.textContent = `Done in ${((performance.now() - begun) / 1000).toFixed(1)} s.`;
  } catch (error) {
    status.textContent = error.message;
    status.classList.add("error");
  } finally {
    button.disabled = false;
  }
};
