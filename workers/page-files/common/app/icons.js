// Icons as SVG: lines on a grid of 24, in the colour of the text around them.
import { make } from "./dom.js";

const PATHS = {
  adapter: "M12 3 3 8l9 5 9-5-9-5zM3 12.5l9 5 9-5M3 17l9 5 9-5",
  alert: "M12 8v5M12 16.5v.01M12 3 2.5 20h19L12 3z",
  attach: "M20 11.5 11.8 19.7a5 5 0 0 1-7.1-7.1l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4l7.8-7.8",
  branch: "M6 4v9a4 4 0 0 0 4 4h8M14 13l4 4-4 4M6 4v16",
  brush: "M14.5 5.5 18.5 9.5 10 18H6v-4zM4 21h16",
  check: "M5 12.5 10 17.5 19.5 7",
  close: "M6 6l12 12M18 6 6 18",
  compare: "M12 3v18M4 6h6v12H4zM14 6h6v12h-6z",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  dark: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
  dice: "M5 5h14v14H5zM9 9v.01M15 9v.01M12 12v.01M9 15v.01M15 15v.01",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
  download: "M12 4v11M7 10.5 12 15.5 17 10.5M4 20h16",
  edit: "M4 20h4L19.5 8.5l-4-4L4 16v4zM13 7l4 4",
  eraser: "M8 19h12M5 14 13.5 5.5l5 5L11 18H8zM9.5 9.5l5 5",
  file: "M6 3h8l4.5 4.5V21H6zM14 3v5h4.5",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  forward: "M5 5v14M9 12h11M14.5 6.5 20 12l-5.5 5.5",
  invert: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  left: "M14.5 5.5 8 12l6.5 6.5",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2.5M12 19.5V22M2 12h2.5M19.5 12H22M5 5l1.7 1.7M17.3 17.3 19 19M5 19l1.7-1.7M17.3 6.7 19 5",
  menu: "M4 7h16M4 12h16M4 17h16",
  minus: "M5 12h14",
  more: "M5.5 12v.01M12 12v.01M18.5 12v.01",
  palette: "M12 3a9 9 0 1 0 0 18c1.5 0 2-1 1.5-2.2-.6-1.5.2-2.8 2-2.8H18a3 3 0 0 0 3-3c0-5.5-4-10-9-10zM7.5 11v.01M10 7.5v.01M14.5 7.5v.01",
  pan: "M12 3v18M3 12h18M9.5 5.5 12 3l2.5 2.5M9.5 18.5 12 21l2.5-2.5M5.5 9.5 3 12l2.5 2.5M18.5 9.5 21 12l-2.5 2.5",
  plus: "M12 5v14M5 12h14",
  redo: "M19 8H9a5 5 0 0 0 0 10h5M15.5 4.5 19 8l-3.5 3.5",
  retry: "M20 11a8 8 0 1 0-2.3 6.7M20 4.5V11h-6.5",
  right: "M9.5 5.5 16 12l-6.5 6.5",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5 20.5 20.5",
  send: "M12 20V5M5.5 11 12 4.5 18.5 11",
  settings: "M4 7h9M19 7h1M13 7a3 3 0 1 0 6 0 3 3 0 0 0-6 0M4 17h1M11 17h9M5 17a3 3 0 1 0 6 0 3 3 0 0 0-6 0",
  sound: "M4 9.5v5h4l5 4.5V5L8 9.5H4zM16.5 9a4 4 0 0 1 0 6M19 6.5a8 8 0 0 1 0 11",
  star: "M12 3.5l2.6 5.5 6 .8-4.4 4.2 1.1 6L12 17.1 6.7 20l1.1-6L3.4 9.8l6-.8z",
  stop: "M7 7h10v10H7z",
  swap: "M7 20V5M3.5 8.5 7 5l3.5 3.5M17 4v15M13.5 15.5 17 19l3.5-3.5",
  system: "M3.5 5h17v11h-17zM9 20h6M12 16v4",
  thought: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.5 10.9c.6.5 1 1.3 1 2.1h5c0-.8.4-1.6 1-2.1A6 6 0 0 0 12 3z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1L17 8l.5 2L20 10.5l2-2a4 4 0 0 1-5.5 4L8 21l-4-4 8.5-8.5a4 4 0 0 1 2-2z",
  trash: "M4 7h16M9 7V4h6v3M6.5 7l1 13h9l1-13M10.5 11v5.5M13.5 11v5.5",
  undo: "M5 8h10a5 5 0 0 1 0 10h-5M8.5 4.5 5 8l3.5 3.5",
  upload: "M12 16V5M7 9.5 12 4.5 17 9.5M4 20h16",
};

const SVG = "http://www.w3.org/2000/svg";

export const icon = (name) => {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
};

// A button that shows an icon, and its label to those who point at it or hear the page.
export const iconButton = (name, label, onclick, attributes = {}) =>
  make("button", { type: "button", class: "icon-button", title: label, "aria-label": label, onclick, ...attributes }, icon(name));
