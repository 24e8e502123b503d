// Saving pictures as files.
import { make } from "../dom.js";
import { announce } from "../notices.js";
import { fileName, unlike } from "./names.js";
import { zip } from "./zip.js";

// Saves a blob under a name.
export const saveAs = (name, blob) => {
  const url = URL.createObjectURL(blob);
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
};

export const saveBlob = (picture, blob) => saveAs(fileName(picture, blob), blob);

// Saves pictures, and the videos that some of them begin, in one archive.
export const saveZip = async (collection, pictures) => {
  announce(`Packing ${pictures.length} pictures`);
  const files = [];
  for (const picture of pictures) {
    const { file, video } = await collection.files(picture.id);
    const blob = video ?? file;
    files.push({ name: fileName(picture, blob), blob, time: picture.time });
  }
  const names = unlike(files.map(({ name }) => name));
  saveAs("pictures.zip", await zip(files.map((file, at) => ({ ...file, name: names[at] }))));
};
