// The behaviour of every page: the theme, the keys, looking again, and live events.
import { listen } from "./events.js";

const LOOK_AGAIN_MS = 3000;
const LOOK_FOR_SESSION_MS = 60000;

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

// On a phone the bar is wider than the screen.
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

function isEdited(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (!field.options) return field.value !== field.defaultValue;
  const options = [...field.options];
  return field.value !== (options.find((each) => each.defaultSelected) ?? options[0])?.value;
}

// A visitor who writes, marks or reads something keeps it.
const isInUse = (main) =>
  main.contains(document.activeElement) ||
  !getSelection().isCollapsed ||
  [...main.querySelectorAll("input, select, textarea")].some(isEdited);

async function lookAgain(main) {
  if (document.hidden || isInUse(main)) return;
  const answer = await fetch(location.href);
  if (answer.redirected) location.replace(answer.url);
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (fresh && !isInUse(main)) main.replaceChildren(...fresh.childNodes);
}

const live = document.querySelector("main[data-live]");
if (live) {
  const again = () => lookAgain(live).catch(() => {}).finally(() => setTimeout(again, LOOK_AGAIN_MS));
  setTimeout(again, LOOK_AGAIN_MS);
}

// A page that stays as it is must not be left on the screen when its session has ended.
const session = document.body.dataset.session;
async function leaveIfOver() {
  const answer = await fetch(session, { method: "HEAD" });
  if (answer.redirected) location.replace(answer.url);
}
if (session) {
  const look = () => leaveIfOver().catch(() => {});
  setInterval(look, LOOK_FOR_SESSION_MS);
  document.addEventListener("visibilitychange", look);
}

const show = document.querySelector("[data-show]");
if (show) {
  show.parentElement.hidden = false;
  show.addEventListener("change", () => {
    document.getElementById(show.dataset.show).type = show.checked ? "text" : "password";
  });
}

const list = document.querySelector("[data-events]");
if (list) listen(list);
