// Elements, numbers for people, and what two samples of counters say.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a string becomes text, so nothing is ever markup. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function whole(number) {
  return grouped.format(number);
}

function compact(number) {
  return number < 10000 ? grouped.format(number) : short.format(number);
}

function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

function plural(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A time in seconds, to about three digits. */
function time(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
  if (seconds < 1) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(0)} h` : `${(seconds / 86400).toFixed(0)} days`;
}

/** The value below which a share of a histogram lies, between its bounds by interpolation. */
function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let below = 0;
  for (let i = 0; i < bounds.length; i++) {
    if (counts[i] && below + counts[i] >= share * total) {
      const from = i ? bounds[i - 1] : 0;
      return from + ((bounds[i] - from) * (share * total - below)) / counts[i];
    }
    below += counts[i];
  }
  return bounds.at(-1) ?? null;
}

/** The counters of the last minutes, and rates over the newest of them. */
class History {
  constructor(seconds) {
    this.seconds = seconds;
    this.samples = []; // {at, info}, oldest first
    this.points = []; // {at, name: value, ...}, what the charts draw
  }

  /** Take the counters at a time in seconds; a runtime that has started anew begins a new history. */
  take(at, info) {
    const last = this.samples.at(-1);
    if (last && info.uptime < last.info.uptime) this.samples = [];
    this.samples.push({ at, info });
    while (this.samples[0].at < at - this.seconds) this.samples.shift();
    this.points.push({ at, ...this.#rates() });
    while (this.points[0].at < at - this.seconds) this.points.shift();
  }

  #rates() {
    const { info } = this.samples.at(-1);
    const near = this.#since(5);
    const wide = this.#since(30);
    const prompt = wide ? info.prompt_tokens - wide.info.prompt_tokens : 0;
    const passed = near ? info.uptime - near.info.uptime : 0;
    return {
      running: info.running,
      waiting: info.waiting,
      written: passed > 0 ? (info.generated_tokens - near.info.generated_tokens) / passed : null,
      hit: prompt > 0 ? (info.cached_prompt_tokens - wide.info.cached_prompt_tokens) / prompt : null,
      ttft: this.#quantile("ttft", 0.5, wide),
      ttft95: this.#quantile("ttft", 0.95, wide),
      tpot: this.#quantile("tpot", 0.5, wide),
      tpot95: this.#quantile("tpot", 0.95, wide),
    };
  }

  /** The newest sample that is at least that old, else the oldest but the last. */
  #since(seconds) {
    const last = this.samples.length - 1;
    let i = last - 1;
    while (i > 0 && this.samples[last].at - this.samples[i].at < seconds - 0.1) i--;
    return this.samples[i];
  }

  #quantile(name, share, before) {
    const now = this.samples.at(-1).info.histograms[name];
    const then = before?.info.histograms[name];
    if (!now || !then) return null;
    return quantile(now.bounds, now.counts.map((count, i) => count - then.counts[i]), share);
  }
}
