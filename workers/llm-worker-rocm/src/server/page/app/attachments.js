// Files that go with a message: pictures, sounds, and text.
import { make } from "./dom.js";
import { icon, iconButton } from "./icons.js";

// Pixels of a picture's longer side; encoders see no more of most pictures.
const MOST_SIDE = 1536;
const MOST_TEXT = 512 * 1024;
const MOST_SOUND = 32 * 1024 * 1024;

// A picture of any format that the browser knows, upright and not too large.
const pictureOf = async (file) => {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const isSmall = scale === 1 && file.type === "image/png";
  return canvas.toDataURL(isSmall ? "image/png" : "image/jpeg", 0.92);
};

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

const refuse = (message) => {
  throw new Error(message);
};

const picture = async (file, name, takes) => {
  if (takes?.vision === false) refuse("This model takes no pictures.");
  try {
    return { kind: "picture", name, url: await pictureOf(file) };
  } catch {
    return refuse(`${name} is no picture that the browser can show.`);
  }
};

const sound = async (file, name, takes) => {
  if (takes?.audio === false) refuse("This model takes no sounds.");
  if (file.size > MOST_SOUND) refuse(`${name} is larger than 32 MiB.`);
  // As it is: the server knows its format.
  return { kind: "sound", name, url: await dataUrl(file) };
};

const text = async (file, name) => {
  if (file.type === "application/pdf") refuse(`${name} is a PDF: copy its text into the message.`);
  if (file.size > MOST_TEXT) refuse(`${name} is larger than 512 KiB.`);
  const bytes = await file.arrayBuffer();
  try {
    const found = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!found.includes("\0")) return { kind: "text", name, text: found };
  } catch {
    // Not text, which the next line says.
  }
  return refuse(`${name} is no picture, sound or text.`);
};

// A file as an attachment; `takes` is what the model takes, as far as that is known.
//
// Throws a sentence for the user.
export const attachment = (file, takes) => {
  const name = file.name || "file";
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return picture(file, name, takes);
  if (file.type.startsWith("audio/")) return sound(file, name, takes);
  return text(file, name);
};

// How it looks in a message.
export const shown = ({ kind, name, url, text: content }) => {
  if (kind === "picture") return make("img", { class: "picture", src: url, alt: name, loading: "lazy" });
  if (kind === "sound") return make("audio", { class: "sound", src: url, controls: true, "aria-label": name });
  return make(
    "details",
    { class: "fold file" },
    make("summary", {}, icon("file"), make("span", {}, name)),
    make("pre", { tabindex: 0 }, content),
  );
};

// How it looks before it is sent; `remove` takes it out.
export const thumbnail = (each, remove) => {
  const view =
    each.kind === "picture"
      ? make("img", { src: each.url, alt: each.name })
      : make("span", { class: "chip" }, icon(each.kind === "sound" ? "sound" : "file"), make("span", {}, each.name));
  return make("div", { class: `thumbnail ${each.kind}` }, view, iconButton("close", `Take ${each.name} out`, remove));
};
