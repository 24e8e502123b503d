"use strict";
const steps = () => [...document.querySelectorAll("article")];
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const all = steps(), at = all.indexOf(document.activeElement.closest("article"));
  const go = { j: at + 1, k: at < 0 ? 0 : at - 1, g: 0, G: all.length - 1 }[event.key];
  if (go !== undefined && all[go]) {
    all[go].focus();
    all[go].scrollIntoView({ block: "nearest" });
    event.preventDefault();
  } else if (event.key === "o" && all[at]) {
    const details = [...all[at].querySelectorAll("details")], open = !details.every(d => d.open);
    details.forEach(d => { d.open = open; });
  }
});
// What was open, and where the focus was, stays when a step is drawn again.
const draw = (id, html) => {
  const old = document.getElementById(id);
  const made = document.createRange().createContextualFragment(html).firstElementChild;
  if (!old) { document.getElementById("steps").append(made); return; }
  const open = [...old.querySelectorAll("details")].map(d => d.open), focus = old === document.activeElement;
  old.replaceWith(made);
  [...made.querySelectorAll("details")].forEach((d, i) => { d.open = open[i] ?? d.open; });
  if (focus) made.focus();
};
if (document.body.dataset.live) {
  const status = document.getElementById("live"), source = new EventSource("events");
  source.onopen = () => { status.textContent = "live"; };
  source.onerror = () => { status.textContent = "connection lost, trying again"; };
  source.addEventListener("part", event => {
    const part = JSON.parse(event.data);
    draw(part.id, part.html);
  });
  source.addEventListener("steps", event => {
    const count = JSON.parse(event.data);
    steps().slice(count).forEach(step => step.remove());
  });
  source.addEventListener("end", () => { source.close(); status.textContent = "finished"; });
}
