// Asks the gateway for the picture once a second and hands it to the parts of the page.

const PERIOD = 1000; // milliseconds
const KEEP = 300; // seconds of history,
const LEAST = 60; // and of the charts while there is less
const KEY = "branchline-key";

const at = (id) => document.getElementById(id);
const charts = [
  new Chart("Requests", [{ key: "running", label: "running" }, { key: "waiting", label: "waiting" }], whole, { least: 4 }),
  new Chart("Written", [{ key: "written", label: "tokens/s" }], compact, { least: 10 }),
  new Chart("Prompt tokens from the cache", [{ key: "hit", label: "of the last 30 s" }], percent, { top: 1 }),
  new Chart("Time to the first token", [{ key: "ttft", label: "median" }, { key: "ttft95", label: "95 %" }], time, { least: 0.01 }),
  new Chart("Time per further token", [{ key: "tpot", label: "median" }, { key: "tpot95", label: "95 %" }], time, { least: 0.01 }),
];
const past = new History(KEEP);
const tree = new Icicle(at("tree"), at("node"));
const requests = new Requests(at("requests"), at("requests-text"), (node) => tree.mark(node));
const memory = new Memory(at("memory"), at("memory-text"));
let paused = false;
let updates = 0;

function show(picture) {
  const { info } = picture;
  const now = performance.now() / 1000;
  past.take(now, info);
  const seconds = Math.max(now - past.points[0].at, LEAST);
  for (const chart of charts) chart.draw(past.points, now, seconds);
  memory.take(info);
  tree.take(picture.nodes, picture.requests, info.pages_cached);
  requests.take(picture.requests, info);
  at("tree-text").textContent = treeSummary(picture);
  at("model").textContent = `${info.model}, up ${time(info.uptime)}`;
  document.title = `${whole(info.running)} running · Branchline`;
  document.documentElement.dataset.updates = ++updates;
}

function treeSummary({ info, nodes, total_nodes: total }) {
  const shown = nodes.id.length < total ? `, the largest ${whole(nodes.id.length)} shown` : "";
  const all = info.prompt_tokens ? info.cached_prompt_tokens / info.prompt_tokens : null;
  const since = all === null ? "" : ` · ${percent(all)} of all prompt tokens came from here`;
  const evicted = info.evicted_pages ? ` · ${compact(info.evicted_pages)} evicted` : "";
  return `${plural(info.pages_cached, "token")} in ${plural(total, "run")}${shown}${since}${evicted}`;
}

function say(state, words, banner = "") {
  at("status").className = state;
  at("status").textContent = words;
  at("banner").textContent = banner;
  at("banner").hidden = !banner;
}

async function ask() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch("live", { headers, cache: "no-store", signal: AbortSignal.timeout(10 * PERIOD) });
  at("key").hidden = reply.status !== 401;
  if (reply.status === 401) return say("lost", "locked", key ? "This key is not one of the gateway's." : "");
  if (!reply.ok) return say("lost", "refused", `The gateway answered ${reply.status}.`);
  const picture = await reply.json();
  if (!picture.up) return say("lost", "no runtime", picture.reason);
  show(picture);
  say("", "live");
}

async function watch() {
  if (!paused && !document.hidden) {
    await ask().catch(() => say("lost", "no answer", "The gateway does not answer; it is asked again every second."));
  }
  setTimeout(watch, PERIOD);
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").textContent = paused ? "Go on" : "Pause";
  at("pause").setAttribute("aria-pressed", paused);
  if (paused) say("paused", "paused");
});
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key-value").value);
});
at("charts").append(...charts.map(({ card }) => card));
watch();
