// A card for each number that moves: what it is now, and its last five minutes as lines.

const WIDTH = 300; // of the drawing; the browser stretches it
const HEIGHT = 68;

const STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** A round number a little above a value: the top of a scale that does not jitter. */
function roundUp(value) {
  const wanted = 1.05 * value;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * STEPS.find((step) => step * power >= 0.999 * wanted);
}

class Chart {
  /** `series` are one or two {key, label} of a history's points; `top` fixes the scale. */
  constructor(title, series, format, { top = null, least = 1 } = {}) {
    Object.assign(this, { series, format, top, least, points: [], at: 0, seconds: 1 });
    this.now = element("p", { class: "now" });
    this.scale = element("span", { class: "top" });
    this.when = element("span", {}, "");
    this.paths = series.map((_, i) => drawing("path", { class: i ? "second" : "first" }));
    this.under = drawing("path", { class: "under" });
    this.cursor = drawing("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    const half = drawing("line", { x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
    const shape = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    const svg = drawing("svg", shape, half, this.under, ...this.paths, this.cursor);
    const plot = element("div", { class: "plot" }, svg, this.scale);
    plot.addEventListener("pointermove", (event) => this.#point(event, plot));
    plot.addEventListener("pointerleave", () => this.#leave());
    const when = element("p", { class: "when" }, this.when, element("span", {}, "now"));
    this.card = element("div", { class: "chart" }, element("h2", {}, title), this.now, plot, when);
  }

  draw(points, at, seconds) {
    Object.assign(this, { points, at, seconds });
    const highest = Math.max(this.least, ...points.flatMap((point) => this.series.map(({ key }) => point[key] ?? 0)));
    this.highest = this.top ?? roundUp(highest);
    this.scale.textContent = this.format(this.highest);
    this.when.textContent = `${time(seconds)} ago`;
    this.series.forEach(({ key }, i) => this.paths[i].setAttribute("d", this.#line(key)));
    this.under.setAttribute("d", this.#area(this.series[0].key));
    if (!this.pointed) this.#tell(points.at(-1));
  }

  #x(point) {
    return WIDTH * (1 - (this.at - point.at) / this.seconds);
  }

  #y(value) {
    return HEIGHT * (1 - Math.min(value / this.highest, 1));
  }

  /** The runs of points that have a value. */
  #runs(key) {
    const runs = [[]];
    for (const point of this.points) {
      if (point[key] !== null) runs.at(-1).push(`${this.#x(point).toFixed(1)} ${this.#y(point[key]).toFixed(1)}`);
      else if (runs.at(-1).length) runs.push([]);
    }
    return runs.filter((run) => run.length);
  }

  #line(key) {
    return this.#runs(key).map((run) => `M${run.join("L")}${run.length > 1 ? "" : "h.5"}`).join("");
  }

  #area(key) {
    const foot = (place) => `${place.split(" ")[0]} ${HEIGHT}`;
    return this.#runs(key).map((run) => `M${foot(run[0])}L${run.join("L")}L${foot(run.at(-1))}Z`).join("");
  }

  #tell(point) {
    const parts = this.series.flatMap(({ key, label }, i) => {
      const value = point && point[key] !== null ? this.format(point[key]) : "–";
      const colour = this.series.length > 1 ? (i ? "second" : "first") : "";
      return [i ? " " : "", element("b", { class: colour }, value), " ", element("small", {}, label)];
    });
    this.now.replaceChildren(...parts);
  }

  #point(event, plot) {
    const box = plot.getBoundingClientRect();
    const x = (WIDTH * (event.clientX - box.left)) / box.width;
    const far = (point) => Math.abs(this.#x(point) - x);
    const nearest = this.points.reduce((best, point) => (best && far(best) <= far(point) ? best : point), null);
    if (!nearest) return;
    this.pointed = true;
    this.cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.#x(nearest));
    this.when.textContent = `${time(this.at - nearest.at)} ago`;
    this.#tell(nearest);
  }

  #leave() {
    this.pointed = false;
    this.cursor.setAttribute("visibility", "hidden");
    this.draw(this.points, this.at, this.seconds);
  }
}
