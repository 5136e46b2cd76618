// The behaviour of every page: the theme, the keys, looking again, and live events.
import { listen } from "./events.js";

const LOOK_AGAIN_MS = 3000;

document.querySelector("[data-theme-switch]").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  document.querySelector("[data-search]")?.focus();
});

async function lookAgain(main) {
  if (document.hidden || main.contains(document.activeElement) || !getSelection().isCollapsed) return;
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (fresh) main.replaceChildren(...fresh.childNodes);
}

const live = document.querySelector("main[data-live]");
if (live) {
  const again = () => lookAgain(live).catch(() => {}).finally(() => setTimeout(again, LOOK_AGAIN_MS));
  setTimeout(again, LOOK_AGAIN_MS);
}

const list = document.querySelector("[data-events]");
if (list) listen(list);
