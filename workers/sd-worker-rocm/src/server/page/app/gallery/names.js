// Names of files that are saved.

const TYPES = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "video/mp4": "mp4" };
const LONGEST = 60;

// `20260131-154500-7-a-red-circle.png`: time, seed and prompt, of letters that every system takes.
export const fileName = ({ time, seed, prompt, index }, blob) => {
  const date = new Date(time);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}${two(date.getMonth() + 1)}${two(date.getDate())}`;
  const clock = `${two(date.getHours())}${two(date.getMinutes())}${two(date.getSeconds())}`;
  const words = (prompt ?? "")
    .normalize("NFC")
    .replace(/[^\p{L}\p{M}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "");
  const parts = [day, clock, seed ?? index, [...words].slice(0, LONGEST).join("").replace(/-$/, "")];
  return `${parts.filter((part) => part !== "").join("-")}.${TYPES[blob.type] ?? "bin"}`;
};

// Names of which none is there twice.
export const unlike = (names) => {
  const seen = new Map();
  return names.map((name) => {
    const count = seen.get(name) ?? 0;
    seen.set(name, count + 1);
    return count ? name.replace(/(\.\w+)$/, `-${count + 1}$1`) : name;
  });
};
