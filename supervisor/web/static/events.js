// Live events, from one stream. Texts are set as texts and never as HTML: they come from anybody who can put a job.
const MOST_SHOWN = 500;

function link(base, page, parameter, value) {
  const made = document.createElement("a");
  made.href = `${base}/${page}?${parameter}=${encodeURIComponent(value)}`;
  made.textContent = value;
  return made;
}

function lineOf(event, base) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date(event.when_unix * 1000).toISOString().slice(11, 23);
  const name = document.createElement("strong");
  name.textContent = event.name;
  const rest = document.createElement("span");
  if (event.jid) rest.append(link(base, "job", "jid", event.jid), " ");
  if (event.klass) rest.append(`${event.klass} `);
  if (event.queue) rest.append("in ", link(base, "queue", "queue", event.queue), " ");
  for (const [key, value] of Object.entries(event.fields ?? {})) {
    if (value !== null && value !== "") rest.append(`${key} ${typeof value === "object" ? JSON.stringify(value) : value} `);
  }
  if (event.worker) rest.append("at ", link(base, "supervisor", "worker", event.worker));
  if (/failed|died|lost|stalled|dropped/.test(event.name)) line.className = "alarm";
  line.append(time, " ", name, " ", rest);
  return line;
}

export function listen(list) {
  const filter = document.querySelector("[data-events-filter]");
  const pause = document.querySelector("[data-events-pause]");
  const state = document.querySelector("[data-events-state]");
  const matches = (line) => line.textContent.toLowerCase().includes(filter.value.toLowerCase());
  const stream = new EventSource(list.dataset.events);
  stream.onopen = () => (state.textContent = "listening");
  stream.onerror = () => (state.textContent = "no connection; trying again …");
  stream.addEventListener("missed", (told) => (state.textContent = `too fast: ${told.data} events were not shown`));
  stream.onmessage = (told) => {
    if (pause.getAttribute("aria-pressed") === "true") return;
    const line = lineOf(JSON.parse(told.data), list.dataset.base);
    line.hidden = !matches(line);
    list.prepend(line);
    while (list.childElementCount > MOST_SHOWN) list.lastElementChild.remove();
  };
  filter.addEventListener("input", () => {
    for (const line of list.children) line.hidden = !matches(line);
  });
  pause.addEventListener("click", () => {
    const isPaused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
}
