// A grid as one picture with its labels.

// What browsers draw on one canvas everywhere.
const MOST_SIDE = 16_384;
const MOST_PIXELS = 120_000_000;
const GAP = 8;
const LINES = 3;

// A text in at most `LINES` lines of this width; what does not fit ends in an ellipsis.
const wrapped = (context, text, width) => {
  const lines = [];
  let line = "";
  const fits = (part) => context.measureText(part).width <= width;
  for (const word of text.split(/\s+/).filter(Boolean)) {
    let rest = word;
    if (line && fits(`${line} ${rest}`)) {
      line = `${line} ${rest}`;
      continue;
    }
    if (line) lines.push(line);
    while (!fits(rest) && rest.length > 1 && lines.length < LINES) {
      let end = rest.length - 1;
      while (end > 1 && !fits(rest.slice(0, end))) end--;
      lines.push(rest.slice(0, end));
      rest = rest.slice(end);
    }
    line = rest;
  }
  if (line) lines.push(line);
  if (lines.length <= LINES) return lines;
  let last = lines[LINES - 1];
  while (last && !fits(`${last}…`)) last = last.slice(0, -1);
  return [...lines.slice(0, LINES - 1), `${last}…`];
};

// Draws a grid: `pictures` are the cells' as ImageBitmap, or a text in the place of one. Gives the canvas, and by how
// much the pictures had to be made smaller.
export const draw = (grid, pictures) => {
  const [columns, rows, tables] = [0, 1, 2].map((number) => grid.axes[number]?.names ?? [""]);
  const bitmaps = pictures.filter((picture) => typeof picture !== "string");
  const size = (side) => Math.max(64, ...bitmaps.map((bitmap) => bitmap[side]));
  const [width, height] = [size("width"), size("height")];
  const font = Math.max(12, Math.round(Math.min(width, height) / 14));
  const line = Math.round(font * 1.25);
  const label = LINES * line + GAP;
  const left = grid.axes[1] ? Math.max(Math.round(width / 2), 6 * font) : 0;
  const top = grid.axes[0] ? label : 0;
  const title = grid.axes[2] ? label : 0;
  const whole = {
    width: left + columns.length * (width + GAP) + GAP,
    height: tables.length * (title + top + rows.length * (height + GAP) + GAP),
  };
  const scale = Math.min(
    1,
    MOST_SIDE / whole.width,
    MOST_SIDE / whole.height,
    Math.sqrt(MOST_PIXELS / (whole.width * whole.height)),
  );
  const canvas = document.createElement("canvas");
  canvas.width = Math.floor(whole.width * scale);
  canvas.height = Math.floor(whole.height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = "white";
  context.fillRect(0, 0, whole.width, whole.height);
  context.imageSmoothingQuality = "high";
  context.textAlign = "center";
  context.textBaseline = "middle";
  const write = (text, x, y, room, weight = "") => {
    context.font = `${weight} ${font}px sans-serif`;
    const lines = wrapped(context, text, room);
    lines.forEach((part, at) => context.fillText(part, x, y + (at - (lines.length - 1) / 2) * line));
  };
  const table = title + top + rows.length * (height + GAP) + GAP;
  context.fillStyle = "black";
  for (let z = 0; z < tables.length; z++) {
    const begin = z * table;
    if (title) write(tables[z], whole.width / 2, begin + title / 2, whole.width - 2 * GAP, "bold");
    for (let x = 0; top && x < columns.length; x++) {
      write(columns[x], left + GAP + x * (width + GAP) + width / 2, begin + title + top / 2, width);
    }
    for (let y = 0; left && y < rows.length; y++) {
      write(rows[y], left / 2, begin + title + top + GAP + y * (height + GAP) + height / 2, left - GAP);
    }
  }
  grid.cells.forEach(({ at: [x = 0, y = 0, z = 0] }, number) => {
    const picture = pictures[number];
    const [across, down] = [left + GAP + x * (width + GAP), z * table + title + top + GAP + y * (height + GAP)];
    if (typeof picture !== "string") {
      context.drawImage(picture, across + (width - picture.width) / 2, down + (height - picture.height) / 2);
      return;
    }
    context.fillStyle = "#ddd";
    context.fillRect(across, down, width, height);
    context.fillStyle = "#900";
    write(picture, across + width / 2, down + height / 2, width - GAP);
    context.fillStyle = "black";
  });
  return { canvas, scale };
};
