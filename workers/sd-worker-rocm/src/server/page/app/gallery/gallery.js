// The pane of the gallery: small pictures with search, choice of several, and what is done with them.
import { make } from "../dom.js";
import { keptOf } from "../kept.js";
import { notice } from "../notices.js";
import { matches } from "../search.js";
import { Compare } from "./compare.js";
import { saveBlob, saveZip } from "./save.js";
import { Viewer } from "./viewer.js";

const SHOWN = 60;

const KINDS = [
  ["all", "All", () => true],
  ["mine", "Of this browser", ({ mine }) => mine],
  ["favourites", "Favourites", ({ favourite }) => favourite],
  ["videos", "Videos", ({ isVideo, videoUrl }) => isVideo || videoUrl],
  ["others", "Of others", ({ mine }) => !mine],
];

const size = (bytes) =>
  bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / 2 ** 20).toFixed(bytes < 10 * 2 ** 20 ? 1 : 0)} MiB`;

export const mount = async (element, context) => {
  const { collection } = await keptOf(context);
  const chosen = new Set();
  // By id: figure and address of the small picture, for as long as the page has it.
  const figures = new Map();
  let most = SHOWN;
  let found = [];

  const failed = (error) => notice(error.message, { isError: true });
  const action = (label, run, attributes = {}) =>
    make(
      "button",
      { type: "button", class: "small", onclick: () => Promise.resolve(run()).catch(failed), ...attributes },
      label,
    );

  const search = make("input", {
    type: "search",
    placeholder: "Search prompts",
    "aria-label": "Search prompts",
    oninput: () => show(),
  });
  const kind = make(
    "select",
    { "aria-label": "Which pictures", onchange: () => show() },
    KINDS.map(([id, label]) => make("option", { value: id }, label)),
  );
  const count = make("span", { class: "hint", role: "status" });
  const downloadAll = action("Download all", () => saveZip(collection, found));
  const chosenCount = make("span", { class: "hint" });
  const compare = action("Compare", () => comparing.open(...[...chosen].map((id) => collection.get(id))));
  const bar = make(
    "div",
    { class: "bar row picked", hidden: true },
    chosenCount,
    compare,
    action("Favourite", () => Promise.all([...chosen].map((id) => collection.favour(id, true)))),
    action("Download", () => download([...chosen].map((id) => collection.get(id)))),
    action("Delete", () => remove([...chosen])),
    action("Choose none", () => choose([...chosen], false)),
  );
  const list = make("div", { class: "gallery", id: "gallery" });
  const more = action("Show more", () => {
    most += SHOWN;
    show();
  });
  const usage = make("p", { class: "hint" });
  element.replaceChildren(make("div", { class: "bar row" }, search, kind, count, downloadAll), bar, list, more, usage);

  const download = async (pictures) => {
    if (pictures.length !== 1) return saveZip(collection, pictures);
    const { file, video } = await collection.files(pictures[0].id);
    saveBlob(pictures[0], video ?? file);
  };

  const remove = async (ids) => {
    const many = ids.length === 1 ? "this picture" : `these ${ids.length} pictures`;
    if (!ids.length || !confirm(`Delete ${many}? Pictures of this browser's jobs are deleted from the server, too.`))
      return false;
    await collection.remove(ids);
    return true;
  };

  const viewer = new Viewer({ collection, context, remove, download: (picture) => download([picture]) });
  const comparing = new Compare(collection);

  const choose = (ids, isChosen) => {
    for (const id of ids) {
      if (isChosen) chosen.add(id);
      else chosen.delete(id);
      const figure = figures.get(id);
      if (figure) figure.box.checked = isChosen;
    }
    showChosen();
  };

  const showChosen = () => {
    bar.hidden = chosen.size === 0;
    chosenCount.textContent = `${chosen.size} chosen`;
    compare.disabled = chosen.size !== 2;
    compare.title = chosen.size === 2 ? "" : "Choose two pictures";
  };

  const create = (picture) => {
    const { id } = picture;
    const image = make("img", { alt: "", loading: "lazy" });
    const box = make("input", {
      type: "checkbox",
      "aria-label": "Choose this picture",
      onchange: () => choose([id], box.checked),
    });
    const star = make("button", {
      type: "button",
      class: "star",
      "aria-label": "Favourite",
      title: "Favourite",
      onclick: () => collection.favour(id, !collection.get(id)?.favourite).catch(failed),
    });
    const open = make(
      "button",
      {
        type: "button",
        class: "open",
        "aria-label": `Open: ${picture.prompt || "a picture without prompt"}`,
        title: picture.prompt,
        onclick: () =>
          viewer.open(
            found.map((each) => each.id),
            id,
          ),
      },
      image,
    );
    const caption = make("figcaption", {}, `${picture.seed} · ${picture.prompt}`);
    const node = make("figure", { "data-id": id }, open, box, star, caption);
    const figure = { node, box, star, image, url: null };
    figures.set(id, figure);
    collection.thumb(id).then(
      (blob) => {
        if (!blob || !figures.has(id)) return;
        figure.url = URL.createObjectURL(blob);
        image.src = figure.url;
      },
      () => image.replaceWith(make("span", { class: "hint" }, "This picture cannot be shown.")),
    );
    return figure;
  };

  const show = () => {
    const isOfKind = KINDS.find(([id]) => id === kind.value)[2];
    found = collection.all.filter(
      (picture) =>
        isOfKind(picture) && matches(search.value, [picture.prompt, picture.parameters, String(picture.seed)]),
    );
    const shown = found.slice(0, most);
    const nodes = shown.map((picture) => {
      const figure = figures.get(picture.id) ?? create(picture);
      figure.star.textContent = picture.favourite ? "★" : "☆";
      figure.star.setAttribute("aria-pressed", String(Boolean(picture.favourite)));
      figure.node.classList.toggle("video", Boolean(picture.isVideo || picture.videoUrl));
      figure.node.classList.toggle("foreign", !picture.mine);
      return figure.node;
    });
    for (const [id, { node, url }] of figures) {
      if (nodes.includes(node)) continue;
      if (url) URL.revokeObjectURL(url);
      figures.delete(id);
    }
    for (const id of chosen) if (!collection.get(id)) chosen.delete(id);
    if (nodes.length) place(list, nodes);
    else
      list.replaceChildren(
        make(
          "p",
          { class: "hint" },
          search.value ? "No picture has these words." : "Pictures that are made are shown here.",
        ),
      );
    more.hidden = found.length <= most;
    count.textContent = `${found.length} ${found.length === 1 ? "picture" : "pictures"}`;
    downloadAll.disabled = found.length === 0;
    const { pictures, bytes, mostPictures, mostBytes } = collection.usage;
    usage.textContent =
      `${pictures} of at most ${mostPictures} pictures are kept in this browser, ${size(bytes)} of ${size(mostBytes)}; ` +
      "the oldest go first, favourites stay. Others are shown as long as the server has them.";
    showChosen();
    viewer.refresh();
  };

  // Arrows move between the pictures.
  list.addEventListener("keydown", (event) => {
    if (!event.target.classList.contains("open") || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...list.querySelectorAll(".open")];
    const columns = all.filter((each) => each.offsetTop === all[0].offsetTop).length;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    const next = by && all[all.indexOf(event.target) + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  collection.subscribe(show);
  show();
};

// Puts nodes in this order, moving no more than is needed: what has the focus keeps it.
const place = (parent, nodes) => {
  const wanted = new Set(nodes);
  for (const node of [...parent.childNodes]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, at) => {
    if (parent.childNodes[at] !== node) parent.insertBefore(node, parent.childNodes[at] ?? null);
  });
};
