// A place for a picture: chosen as a file, dropped, pasted, or sent there.
import { make, present } from "./dom.js";
import { iconButton } from "./icons.js";
import { notice } from "./notices.js";
import { decoded, pictureIn, TAKEN } from "./pictures.js";

// `changed(blob or null)`; the blob was decoded once, so that it is a picture.
export const makeSlot = (label, changed) => {
  let blob = null;
  let url = null;
  const input = make("input", { type: "file", accept: TAKEN.join(","), class: "hidden-visually", "aria-label": `${label}: choose a file` });
  const image = make("img", { alt: label, hidden: true });
  const text = make("span", { class: "hint" }, "Choose, drop or paste a picture");
  const size = make("span", { class: "hint" });
  const clear = iconButton("close", `Remove: ${label}`, () => set(null));
  const area = make("label", { class: "slot-area" }, input, image, text);
  const node = make("div", { class: "slot", role: "group", "aria-label": label }, make("div", { class: "row" }, make("strong", {}, label), size, clear), area);

  const set = async (next) => {
    try {
      const bitmap = next && (await decoded(next));
      size.textContent = bitmap ? `${bitmap.width} x ${bitmap.height}` : "";
      if (url) URL.revokeObjectURL(url);
      url = next && URL.createObjectURL(next);
      blob = next;
      image.hidden = !url;
      text.hidden = Boolean(url);
      clear.hidden = !url;
      if (url) image.src = url;
      else image.removeAttribute("src");
      input.value = "";
      await changed(blob, bitmap);
    } catch (error) {
      notice(error.message, { isError: true });
    }
  };
  input.addEventListener("change", () => input.files[0] && set(input.files[0]));
  takesPictures(node, set);
  clear.hidden = true;
  return { node, set, get blob() { return blob; } };
};

// Pictures that are dropped on an element.
export const takesPictures = (node, take) => {
  node.addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    node.classList.add("dropping");
  });
  node.addEventListener("dragleave", () => node.classList.remove("dropping"));
  node.addEventListener("drop", (event) => {
    node.classList.remove("dropping");
    const picture = pictureIn(event.dataTransfer);
    if (!picture) return;
    event.preventDefault();
    take(picture);
  });
};

// Places that take what is pasted: the first one that is shown, unless a field of text has it.
const pasted = [];
export const takesPasted = (node, take) => pasted.push({ node, take });

document.addEventListener("paste", (event) => {
  const picture = pictureIn(event.clipboardData);
  const place = picture && present(pasted).find(({ node }) => node.checkVisibility());
  if (!place) return;
  event.preventDefault();
  place.take(picture);
});
