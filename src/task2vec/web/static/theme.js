// Light or dark: what the system says, until somebody chooses.

import { get } from "./dom.js";

const KEY = "task2vec-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export const watchTheme = (listener) => listeners.add(listener);

function chosen() {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null; // storage may be forbidden: then nothing is remembered
  }
}

let theme = chosen();
const current = () => theme ?? (system.matches ? "dark" : "light");

function show() {
  if (theme) get("dark").media = theme === "dark" ? "all" : "not all";
  const other = current() === "dark" ? "light" : "dark";
  get("theme").textContent = other === "dark" ? "☾" : "☀";
  get("theme").title = `Switch to ${other}`;
  get("theme").setAttribute("aria-label", `Switch to ${other}`);
  for (const listener of listeners) listener();
}

export function startTheme() {
  get("theme").addEventListener("click", () => {
    theme = current() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      /* as above */
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}
