// Files in one: ZIP as PKWARE's APPNOTE has it, stored without compression, since pictures are compressed already.

// Without the 64-bit extension.
const MOST_FILES = 0xffff;
const MOST_BYTES = 0xffffffff;
// Names are UTF-8.
const FLAGS = 0x800;
const VERSION = 20;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

const crc32 = (bytes) => {
  let value = 0xffffffff;
  for (const byte of bytes) value = (value >>> 8) ^ TABLE[(value ^ byte) & 0xff];
  return ~value >>> 0;
};

// Fields of 2 and 4 bytes, lowest byte first.
const packed = (...fields) => {
  const bytes = new Uint8Array(fields.reduce((sum, [size]) => sum + size, 0));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const [size, value] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return bytes;
};

// Time of day and date as MS-DOS has them, from 1980 on.
const dosTime = (time) => {
  const date = new Date(Math.max(time, Date.UTC(1980, 0, 2)));
  return [
    (date.getHours() << 11) | (date.getMinutes() << 5) | (date.getSeconds() >> 1),
    ((date.getFullYear() - 1980) << 9) | ((date.getMonth() + 1) << 5) | date.getDate(),
  ];
};

// One file of several: { name, blob, time (milliseconds since 1970) }. Each is read once, none is held.
export const zip = async (files) => {
  const parts = [];
  const directory = [];
  let offset = 0;
  if (files.length > MOST_FILES) throw new Error(`${files.length} files do not go into one archive; ${MOST_FILES} do.`);
  for (const { name, blob, time } of files) {
    const encoded = new TextEncoder().encode(name);
    const sum = crc32(new Uint8Array(await blob.arrayBuffer()));
    const common = [
      [2, VERSION],
      [2, FLAGS],
      [2, 0],
      ...dosTime(time).map((value) => [2, value]),
      [4, sum],
      [4, blob.size],
      [4, blob.size],
      [2, encoded.length],
      [2, 0],
    ];
    const local = packed([4, 0x04034b50], ...common);
    directory.push(
      packed([4, 0x02014b50], [2, VERSION], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]),
      encoded,
    );
    parts.push(local, encoded, blob);
    offset += local.length + encoded.length + blob.size;
    if (offset > MOST_BYTES) throw new Error("The pictures are more than the 4 GiB of one archive; choose fewer.");
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = packed(
    [4, 0x06054b50],
    [2, 0],
    [2, 0],
    [2, files.length],
    [2, files.length],
    [4, size],
    [4, offset],
    [2, 0],
  );
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
};
