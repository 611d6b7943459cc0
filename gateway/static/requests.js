// The requests, running ones first, and the memory they share.

const SHOWN_REQUESTS = 100;

function requestName(request) {
  return request.index ? `${request.rid}#${request.index}` : request.rid;
}

class Requests {
  /** `mark` is told the node that the request under the pointer holds. */
  constructor(body, summary, mark) {
    Object.assign(this, { body, summary, mark, rows: new Map() });
    body.addEventListener("pointerleave", () => mark(null));
  }

  take(requests, info) {
    const more = info.running + info.waiting - Math.min(requests.length, SHOWN_REQUESTS);
    const hidden = more > 0 ? `, ${whole(more)} of them not shown` : "";
    this.summary.textContent = `${whole(info.running)} running, ${whole(info.waiting)} waiting${hidden}${goodput(info)}`;
    const rows = new Map();
    for (const request of requests.slice(0, SHOWN_REQUESTS)) {
      const name = `${request.state} ${requestName(request)}`;
      const row = this.rows.get(name) ?? this.#row(request);
      this.#fill(row, request);
      rows.set(name, row);
    }
    this.rows = rows;
    const shown = [...rows.values()].map(({ line }) => line);
    this.body.replaceChildren(...(shown.length ? shown : [nothing()]));
  }

  #row(request) {
    const cells = Array.from({ length: 6 }, () => element("td"));
    cells[0].className = cells[1].className = "name";
    const row = { cells, line: element("tr", { class: request.state }, ...cells), node: null };
    row.prompt = bar(cells[2], ["fresh", "private"]);
    row.written = bar(cells[3], ["used"]);
    row.line.addEventListener("pointerenter", () => this.mark(row.node));
    return row;
  }

  #fill(row, request) {
    const [name, program, , , age, priority] = row.cells;
    row.node = request.node;
    name.textContent = requestName(request);
    program.textContent = program.title = request.program ?? "";
    age.textContent = time(request.age);
    priority.textContent = request.priority ? String(request.priority) : "";
    const running = request.state === "running";
    const cached = request.prompt_tokens ? request.cached_tokens / request.prompt_tokens : 0;
    const told = running ? `, ${percent(cached)} cached` : "";
    row.prompt([cached, running ? 1 - cached : 0], `${plural(request.prompt_tokens, "token")}${told}`);
    const done = request.max_tokens ? request.output_tokens / request.max_tokens : 1;
    row.written([running ? done : 0], `${whole(request.output_tokens)} of ${whole(request.max_tokens)}`);
  }
}

/** How many of the finished requests met the targets, if there are any. */
function goodput(info) {
  const targets = [];
  if (info.target_ttft) targets.push(`first token ≤ ${time(info.target_ttft)}`);
  if (info.target_tpot) targets.push(`then ≤ ${time(info.target_tpot)} per token`);
  if (!targets.length || !info.requests_finished) return "";
  return ` · ${percent(info.requests_good / info.requests_finished)} within the targets (${targets.join(", ")})`;
}

function nothing() {
  return element("tr", { class: "waiting" }, element("td", { colspan: 6 }, "Nobody asks for anything."));
}

/** A bar of coloured shares with a text, in a cell; returns what sets them. */
function bar(cell, classes) {
  const parts = classes.map((name) => element("i", { class: name }));
  const text = element("span");
  cell.append(element("span", { class: "bar" }, ...parts), text);
  return (shares, words) => {
    shares.forEach((share, i) => (parts[i].style.width = `${100 * share}%`));
    text.textContent = words;
  };
}

/** Pages by state, as one bar; a page is the memory of one token. */
class Memory {
  constructor(place, summary) {
    const names = { used: "cached, in use", fresh: "cached", private: "private", free: "free" };
    this.place = place;
    this.parts = Object.entries(names).map(([kind, words]) => {
      const part = { bar: element("i", { class: kind }), words, number: element("span") };
      summary.append(element("span", {}, element("i", { class: kind }), part.number));
      return part;
    });
    place.append(...this.parts.map(({ bar }) => bar));
  }

  take(info) {
    const pages = [info.pages_protected, info.pages_cached - info.pages_protected, info.pages_private, info.pages_free];
    this.parts.forEach((part, i) => {
      part.bar.style.width = `${(100 * pages[i]) / Math.max(info.pages_total, 1)}%`;
      part.number.textContent = `${compact(pages[i])} ${part.words}`;
    });
    const told = this.parts.map(({ number }) => number.textContent).join(", ");
    this.place.setAttribute("aria-label", `Of ${compact(info.pages_total)} pages: ${told}`);
  }
}
