// The tree as an icicle: a bar for each node, its children beneath; by pointer and by keyboard.

const ROW = 22; // pixels
const GLYPH = 6.65; // pixels of a character in a bar
const GLIDE = 400; // milliseconds, a little more than the transitions
const HOW =
  "A bar is a run of tokens, as wide as what is cached in it and below it; what continues it lies beneath. " +
  "Point at one to read it. Click it, or move with the arrow keys and press Enter, to zoom in; Escape zooms out.";

class Icicle {
  constructor(place, details) {
    Object.assign(this, { place, details, bars: new Map(), tree: treeOf({ id: [] }, [], 0) });
    this.focus = -1; // ids: what has the whole width,
    this.chosen = null; // where the keyboard is,
    this.pointed = null; // where the pointer is,
    this.marked = new Set(); // and what a request under the pointer holds
    this.dust = drawing("g", { class: "dust" });
    this.svg = drawing("svg", { "aria-hidden": "true" }, this.dust);
    place.append(this.svg);
    place.addEventListener("keydown", (event) => this.#key(event));
    place.addEventListener("pointerleave", () => this.#show((this.pointed = null)));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  take(columns, requests, cached) {
    this.tree = treeOf(columns, requests, cached);
    this.draw();
  }

  /** Mark what a request holds; null marks nothing. */
  mark(id) {
    const node = this.tree.byId.get(id);
    this.marked = new Set(node ? pathTo(node).map(({ id }) => id) : []);
    for (const [id, bar] of this.bars) bar.group.classList.toggle("marked", this.marked.has(id));
  }

  draw() {
    const width = this.place.clientWidth;
    const focus = this.tree.byId.get(this.focus) ?? this.tree.root;
    if (focus === this.tree.root) this.focus = -1;
    const places = laidOut(focus, 3 / Math.max(width, 1));
    const rows = 1 + Math.max(0, ...places.map(({ row }) => row));
    this.svg.setAttribute("height", rows * ROW);
    this.#drawDust(places.filter(({ node }) => !node), width);
    const drawn = new Set();
    for (const place of places) {
      if (!place.node) continue;
      drawn.add(place.node.id);
      this.#drawBar(place, width, focus);
    }
    for (const [id, bar] of this.bars) {
      if (drawn.has(id)) continue;
      bar.group.remove();
      this.bars.delete(id);
    }
    this.#show();
  }

  #drawDust(places, width) {
    const specks = places.map((place) => {
      const shape = { x: place.left * width, y: place.row * ROW, width: place.width * width, height: ROW };
      return drawing("rect", shape);
    });
    this.dust.replaceChildren(...specks);
  }

  #drawBar({ node, left, width, row }, whole, focus) {
    const bar = this.bars.get(node.id) ?? this.#newBar(node.id);
    const pixels = width * whole;
    bar.group.style.transform = `translate(${left * whole}px, ${row * ROW}px)`;
    bar.rect.style.width = `${pixels}px`;
    bar.rect.style.fill = colour(node);
    const classes = bar.group.classList;
    classes.toggle("held", node.users > 0);
    classes.toggle("above", row < focus.depth);
    classes.toggle("marked", this.marked.has(node.id));
    const count = node.users > 1 && pixels > 60 ? `×${node.users}` : "";
    const room = Math.floor((pixels - 8) / GLYPH) - (count ? count.length + 1 : 0);
    bar.text.textContent = room < 2 ? "" : oneLine(node.text).slice(0, room);
    bar.count.textContent = count;
    bar.count.setAttribute("x", pixels - 5);
  }

  #newBar(id) {
    const rect = drawing("rect", { height: ROW, rx: 2 });
    const text = drawing("text", { x: 5, y: 15 });
    const count = drawing("text", { class: "count", y: 15 });
    const group = drawing("g", {}, rect, text, count);
    group.addEventListener("pointerenter", () => this.#show((this.pointed = id)));
    group.addEventListener("click", () => this.#zoom(id));
    this.svg.append(group);
    const bar = { group, rect, text, count };
    this.bars.set(id, bar);
    return bar;
  }

  /** Give a node the whole width; the one that has it gives it back to the node above. */
  #zoom(id) {
    const node = this.tree.byId.get(id);
    if (!node) return;
    this.chosen = id;
    this.#move(id === this.focus ? node.up.id : id);
  }

  /** Draw another focus; only then do bars glide, as 2,000 every second would be work for nothing. */
  #move(focus) {
    this.focus = focus;
    this.place.classList.add("moving");
    setTimeout(() => this.place.classList.remove("moving"), GLIDE);
    this.draw();
  }

  #key(event) {
    const node = this.tree.byId.get(this.chosen);
    const { key } = event;
    if (key === "Escape") this.#move(this.tree.byId.get(this.focus)?.up?.id ?? -1);
    else if (key === "Enter" && node) this.#zoom(node.id);
    else if (key.startsWith("Arrow")) this.#choose(this.#step(node, key));
    else return;
    event.preventDefault();
  }

  #choose(node) {
    this.pointed = null;
    this.chosen = node.id;
    this.#show();
    this.bars.get(node.id)?.group.scrollIntoView({ block: "nearest" });
  }

  /** The node that an arrow leads to: children lie below, siblings beside. */
  #step(node, key) {
    const first = this.tree.root.below[0];
    if (!node) return first ?? this.tree.root;
    if (key === "ArrowDown") return node.below[0] ?? node;
    if (key === "ArrowUp") return node.up?.up ? node.up : node;
    const beside = node.up?.below ?? [node];
    return beside[beside.indexOf(node) + (key === "ArrowLeft" ? -1 : 1)] ?? node;
  }

  /** What is known of the node under the pointer, else of the chosen one, else of the focus. */
  #show() {
    for (const [id, bar] of this.bars) bar.group.classList.toggle("chosen", id === this.chosen);
    const ids = [this.pointed, this.chosen, this.focus];
    const node = ids.map((id) => this.tree.byId.get(id)).find((found) => found?.up);
    this.details.replaceChildren(...(node ? described(node) : [element("p", {}, HOW)]));
  }
}

/** In use: one colour. Else from fresh to stale, the less recently used. */
function colour(node) {
  if (node.users > 0) return "var(--used)";
  return `color-mix(in oklab, var(--stale) ${Math.round(100 * node.idle)}%, var(--fresh))`;
}

function oneLine(text) {
  return text.trim().replace(/\s*\n\s*/g, " ⏎ ").replace(/\s/g, " ");
}

/** A node for people: where it is, what hangs on it, who holds it, how it begins. */
function described(node) {
  const facts = [
    `positions ${whole(node.start)}–${whole(node.start + node.length - 1)} (${plural(node.length, "token")})`,
    `${plural(node.subtree, "token")} in it and below`,
    node.users ? `held by ${plural(node.users, "running request")}` : `not in use, ${recency(node.idle)}`,
  ];
  if (node.salted) facts.push("under a cache salt");
  const names = node.holders.slice(0, 8).map(requestName).join(", ");
  if (names) facts.push(names + (node.holders.length > 8 ? ", …" : ""));
  const text = element("pre", {}, node.text || "(its text is not told)");
  return [element("p", {}, facts.join(" · ")), text];
}

function recency(idle) {
  if (idle < 0.1) return "used a moment ago";
  return idle > 0.9 ? "among the next to be evicted" : `older than ${percent(1 - idle)} of the cache`;
}
