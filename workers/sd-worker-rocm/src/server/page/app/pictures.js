// Pictures on their way: files, blobs, base64, canvases.
import { blob as fetchBlob, ServerError } from "./server.js";

// Types that the server reads.
export const TAKEN = ["image/png", "image/jpeg", "image/webp"];

// A blob in base64, as the server takes pictures.
export const toBase64 = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });

export const fromBase64 = (text, type = "image/png") => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type });
};

// The blobs anywhere in a value, each replaced by its base64.
export const encoded = async (value) => {
  if (value instanceof Blob) return toBase64(value);
  if (Array.isArray(value)) return Promise.all(value.map(encoded));
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(async ([name, part]) => [name, await encoded(part)]);
  return Object.fromEntries(await Promise.all(entries));
};

// The same value without blobs; lists and objects that had some lose them.
export const withoutBlobs = (value) => {
  if (value instanceof Blob) return undefined;
  if (Array.isArray(value)) return value.map(withoutBlobs).filter((part) => part !== undefined);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([name, part]) => [name, withoutBlobs(part)]);
  return Object.fromEntries(entries.filter(([, part]) => part !== undefined));
};

// The blob of a picture, wherever it lies.
export const blobOf = async (picture) => picture.blob ?? fetchBlob(picture.url);

// Decoded pixels. EXIF's turn is followed, as the server does.
export const decoded = async (blob) => {
  try {
    return await createImageBitmap(blob);
  } catch {
    throw new ServerError("This is no picture that the browser can read. PNG, JPEG and WebP are taken.");
  }
};

export const canvasOf = (width, height) => {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
};

export const toPng = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

// The first picture among what was dropped, pasted or chosen.
export const pictureIn = (transfer) => [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? null;
