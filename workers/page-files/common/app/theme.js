// Light, dark, or as the system has it.
import { local } from "./small-store.js";

export const THEMES = ["system", "light", "dark"];

export const theme = () => {
  const kept = local.get("theme");
  return THEMES.includes(kept) ? kept : "system";
};

const apply = () => {
  const name = theme();
  if (name === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = name;
};

export const setTheme = (name) => {
  local.set("theme", name);
  apply();
};

// Other tabs follow.
window.addEventListener("storage", apply);
apply();
