// Charts: drawn anew from their numbers whenever something changes, as the page has them without scripts.

const shown = { smoothing: 0, scale: "auto", across: "steps", hiddenRuns: new Set(), zoom: {} };
const MARGIN = { left: 14, right: 14, top: 10, labelled: 24, ticks: 22, label: 14 };
// Lines of at most this number of points have a dot at each.
const FEW = 12;
// Lines of which each is told when the pointer is near.
const TOLD = 12;

function svgElement(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return element;
}

class Plot {
  constructor(figure, chart) {
    this.figure = figure;
    this.chart = chart;
    this.hidden = new Set();
    this.canvas = figure.querySelector(".canvas");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    figure.append(this.tip);
    this.legend();
    this.numbers();
    this.drawn = false;
    this.listen();
  }

  // What is to the right: steps or seconds of training, seconds by the clock, or ranks.
  across() {
    if (this.chart.across !== "steps") return this.chart.across;
    const known = this.chart.lines.some((line) => line.seconds.length);
    return shown.across === "seconds" && known ? "seconds" : "steps";
  }

  places(line) {
    return this.across() === "steps" || this.across() === "ranks" ? line.steps : line.seconds;
  }

  lines() {
    return this.chart.lines.filter((line) => !this.hidden.has(line) && !shown.hiddenRuns.has(line.run) && this.places(line).length);
  }

  legend() {
    const list = this.figure.querySelector(".legend");
    if (!list) return;
    this.chart.lines.forEach((line, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(...list.children[at].childNodes);
      list.children[at].append(button);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(line)) this.hidden.add(line);
        button.setAttribute("aria-pressed", String(!this.hidden.has(line)));
        this.draw();
      });
    });
  }

  // The table behind a chart of many lines is made when it is asked for.
  numbers() {
    const behind = this.figure.querySelector(".behind");
    behind.addEventListener("toggle", () => {
      if (behind.querySelector("table")) return;
      const table = document.createElement("table"), text = (value) => exactText(value, this.chart.unit);
      table.className = "sortable";
      const head = table.createTHead().insertRow();
      for (const name of ["line", "first", "least", "most", "last"]) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = name;
        head.append(cell);
      }
      const body = table.createTBody();
      for (const line of this.chart.lines) {
        const row = body.insertRow(), known = line.values.filter((value) => value !== null);
        row.insertCell().textContent = line.name;
        for (const value of [known[0], Math.min(...known), Math.max(...known), known[known.length - 1]]) {
          const cell = row.insertCell();
          cell.className = "number";
          cell.dataset.value = value;
          cell.textContent = text(value ?? null);
        }
      }
      sortable(table);
      const scroll = document.createElement("div");
      scroll.className = "scroll";
      scroll.append(table);
      behind.append(scroll);
    });
  }

  // Where each line runs: its places, its numbers from and to, and what it was before smoothing.
  paths() {
    let ground = [];
    const areas = this.chart.kind === "areas", weight = this.chart.across === "ranks" ? 0 : shown.smoothing;
    return this.lines().map((line) => {
      const places = this.places(line);
      if (!areas) return { line, places, values: smoothed(line.values, weight), raw: weight > 0 ? line.values : null };
      const below = line.values.map((_, at) => ground[at] || 0);
      ground = line.values.map((value, at) => (value || 0) + below[at]);
      return { line, places, values: ground, below, own: line.values };
    });
  }

  draw() {
    const width = Math.max(260, this.canvas.clientWidth || 640), height = width < 420 ? 220 : 260;
    const paths = this.paths(), across = this.across();
    const [x0, x1] = this.range(paths, across);
    const y = this.vertical(paths, [x0, x1], height), sides = [MARGIN.left + Math.max(0, ...y.ticks.map((tick) => textWidth(tick.label))), width - MARGIN.right];
    const x = scaleOf([x0, x1], false, ...sides), bottom = y.scale.from;
    const back = (px) => x0 + ((px - sides[0]) / (sides[1] - sides[0])) * (x1 - x0);
    const svg = svgElement("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": `${this.chart.title}. Arrow keys read off.` });
    const text = (class_, x, y, anchor, text) => svg.append(svgElement("text", { class: class_, x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor }, text));
    if (y.label) text("soft", MARGIN.left, 12, "start", y.label);
    for (const tick of y.ticks) {
      svg.append(svgElement("path", { class: "grid", d: `M${sides[0].toFixed(1)} ${tick.at.toFixed(1)}H${sides[1].toFixed(1)}` }));
      text("soft", sides[0] - 6, tick.at + 4, "end", tick.label);
    }
    const [ticks, unit] = fittingTicks(x, across === "steps" || across === "ranks" ? "count" : "seconds", 2, width - 2);
    for (const tick of ticks) text("soft", tick.middle, bottom + 16, "middle", tick.label);
    const quantity = { clock: "time", seconds: "time of training" }[across] || across;
    text("soft", sides[1], bottom + 30, "end", unit ? `${quantity} (${unit})` : quantity);
    const clip = `clip-${this.chart.id}`;
    const clipPath = svgElement("clipPath", { id: clip });
    clipPath.append(svgElement("rect", { x: sides[0] - 4, y: 0, width: sides[1] - sides[0] + 8, height: bottom + 4 }));
    const body = svgElement("g", { "clip-path": `url(#${clip})` });
    svg.append(clipPath, body);
    this.view = { svg, body, paths, x: x.at, y: y.scale.at, back, x0, x1, width, left: sides[0], right: sides[1], top: y.scale.to, bottom, across, logarithmic: y.scale.logarithmic };
    this.places = new Set();
    for (const path of paths) this.drawPath(path);
    const focused = this.canvas.contains(document.activeElement);
    this.canvas.replaceChildren(svg);
    if (focused) svg.focus();
    this.drawn = true;
  }

  // The y axis over the numbers in a range of x: its scale, ticks and label.
  vertical(paths, [x0, x1], height) {
    const areas = this.chart.kind === "areas", share = ["share", "percent"].includes(this.chart.unit);
    const asked = shown.scale === "auto" ? this.chart.logarithmic : shown.scale === "logarithmic" && !share;
    const rangeOf = (isDrawn) => {
      let low = Infinity, high = -Infinity;
      for (const { places, values } of paths)
        places.forEach((place, at) => {
          const value = values[at];
          if (place < x0 || place > x1 || value === null || !Number.isFinite(value) || !isDrawn(value)) return;
          low = Math.min(low, value);
          high = Math.max(high, value);
        });
      return low <= high ? [low, high] : null;
    };
    const positive = asked && !areas ? rangeOf((value) => value > 0) : null;
    const make = (bottom, top) => {
      if (positive) return withRoom(scaleOf(positive, true, bottom, top));
      const range = rangeOf(() => true);
      if (!areas) return withRoom(scaleOf(range, false, bottom, top));
      const [low, high] = range ? [Math.min(0, range[0]), Math.max(0, range[1])] : [0, 0], full = low === 0 && high === 0 ? 1 : high;
      return placed({ logarithmic: false, low, high: full + 0.04 * (full - low), from: bottom, to: top });
    };
    const foot = height - MARGIN.label - MARGIN.ticks;
    const axis = (top) => {
      const scale = make(foot, top), [ticks, unit] = ticksOf(scale, this.chart.unit, Math.floor(Math.min(10, Math.max(1, (foot - top) / 34))));
      const label = [unit, scale.logarithmic ? "logarithmic" : ""].filter(Boolean).join(", ");
      return { scale, ticks, label };
    };
    const probe = axis(MARGIN.labelled);
    return probe.label ? probe : axis(MARGIN.top);
  }

  range(paths, across) {
    let from = Infinity, to = -Infinity;
    for (const { places } of paths)
      for (const place of places) {
        if (place === null) continue;
        from = Math.min(from, place);
        to = Math.max(to, place);
      }
    const { low, high } = scaleOf(from <= to ? [from, to] : null, false, 0, 1);
    const zoom = shown.zoom[across];
    return zoom && zoom[1] > low && zoom[0] < high ? zoom : [low, high];
  }

  drawPath(path) {
    const { body, x, y, logarithmic } = this.view, { line } = path, style = `s${line.colour}${line.dash ? ` d${line.dash}` : ""}`;
    const point = (at, value) => [x(path.places[at]), y(value)];
    const commands = (points) => points.map(([x, y], number) => `${number ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    path.elements = [];
    const add = (name, attributes) => {
      const element = svgElement(name, attributes);
      path.elements.push(element);
      body.append(element);
    };
    if (path.below) {
      if (path.values.length === 1) {
        const [[middle, high], [, low]] = [point(0, path.values[0]), point(0, path.below[0])];
        add("rect", { class: `area ${style}`, x: middle - 4, y: high, width: 8, height: low - high });
      } else if (path.values.length) {
        const top = path.values.map((value, at) => point(at, value)), low = path.below.map((value, at) => point(at, value)).reverse();
        add("path", { class: `area ${style}`, d: `${commands([...top, ...low])}Z` });
      }
      return;
    }
    // The stretches between gaps.
    const stretches = (values) => {
      const found = [[]];
      values.forEach((value, at) => {
        if (path.places[at] === null) return;
        if (value !== null && Number.isFinite(value) && !(logarithmic && value <= 0)) found[found.length - 1].push(point(at, value));
        else found.push([]);
      });
      return found.filter((stretch) => stretch.length);
    };
    const draw = (class_, found) => {
      const d = found.filter((stretch) => stretch.length > 1).map(commands).join("");
      if (d) add("path", { class: class_, d });
    };
    if (path.raw) draw(`line raw s${line.colour}`, stretches(path.raw));
    // Of lines in the same place, the later ones are dashed and their dots smaller.
    const all = stretches(path.values), place = all.map(commands).join(" "), isOver = this.places.has(place);
    this.places.add(place);
    draw(`line ${style}${isOver ? " over" : ""}`, all);
    const few = all.reduce((sum, stretch) => sum + stretch.length, 0) <= FEW;
    for (const stretch of all)
      if (few || stretch.length === 1)
        for (const [cx, cy] of stretch) add("circle", { class: `dot ${style}`, cx: cx.toFixed(1), cy: cy.toFixed(1), r: ((stretch.length === 1 ? 3.5 : 2.2) - (isOver ? 1.2 : 0)).toFixed(1) });
  }

  zoomTo(range) {
    shown.zoom[this.view.across] = range;
    drawAll();
  }

  listen() {
    let start = null, box = null;
    const place = (event) => {
      const bounds = this.view.svg.getBoundingClientRect();
      const ratio = this.view.width / bounds.width;
      return [(event.clientX - bounds.left) * ratio, (event.clientY - bounds.top) * ratio];
    };
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.view) return;
      const [px, py] = place(event);
      if (start !== null) {
        if (!box) this.view.body.append((box = svgElement("rect", { class: "zoom", y: 0, height: this.view.bottom })));
        box.setAttribute("x", Math.min(start, px));
        box.setAttribute("width", Math.abs(px - start));
      }
      this.read(this.view.back(px), py);
    });
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.view || event.button !== 0) return;
      const [px] = place(event);
      if (px > this.view.left && event.pointerType !== "touch") {
        start = px;
        this.canvas.setPointerCapture(event.pointerId);
      }
      this.read(this.view.back(px), place(event)[1]);
    });
    const end = (event) => {
      const from = start;
      start = box = null;
      if (from === null || event.type !== "pointerup") return;
      const [px] = place(event), ends = [from, Math.min(Math.max(px, this.view.left), this.view.right)].sort((a, b) => a - b);
      if (ends[1] - ends[0] > 8) this.zoomTo(ends.map(this.view.back));
    };
    this.canvas.addEventListener("pointerup", end);
    this.canvas.addEventListener("pointercancel", end);
    this.canvas.addEventListener("pointerleave", () => this.forget());
    this.canvas.addEventListener("dblclick", () => this.zoomTo(null));
    this.canvas.addEventListener("focusout", () => this.forget());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { x0, x1, paths } = this.view;
    const middle = this.at ?? (x0 + x1) / 2;
    const zoom = (factor) => this.zoomTo([middle - (middle - x0) * factor, middle + (x1 - middle) * factor]);
    const step = (by) => {
      const places = paths.length ? paths[0].places : [];
      const next = Math.min(places.length - 1, Math.max(0, nearest(places, middle) + by));
      if (places.length) this.read(places[next], null, true);
    };
    const many = event.shiftKey ? 10 : 1;
    const actions = { ArrowLeft: () => step(-many), ArrowRight: () => step(many), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => this.zoomTo(null), Escape: () => this.forget() };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  forget() {
    this.at = undefined;
    this.tip.hidden = true;
    if (!this.view) return;
    this.view.body.querySelectorAll(".cross, .mark").forEach((mark) => mark.remove());
    for (const { elements } of this.view.paths) elements.forEach((element) => element.classList.remove("near", "far"));
  }

  // Tells the numbers at a place: of the lines nearest to the pointer, if there are many.
  read(value, py, spoken) {
    this.forget();
    const { paths, x, y, x0, x1, body, top, bottom, across, logarithmic } = this.view;
    if (!paths.length || value < x0 - (x1 - x0) * 0.02 || value > x1 + (x1 - x0) * 0.02) return;
    let rows = paths.map((path) => {
      const at = nearest(path.places, value), own = path.own ? path.own[at] : path.values[at];
      return { path, at, own, px: x(path.places[at]), py: y(path.values[at]) };
    }).filter((row) => row.at >= 0 && row.own !== null && Number.isFinite(row.py) && !(logarithmic && row.own <= 0));
    if (!rows.length) return;
    const distance = (row) => Math.abs(row.px - x(value)) + (py === null ? 0 : Math.abs(row.py - py));
    const near = rows.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    this.at = near.path.places[near.at];
    const px = near.px;
    body.append(svgElement("path", { class: "cross", d: `M${px} ${top}V${bottom}` }));
    for (const row of rows.slice(0, 40)) body.append(svgElement("circle", { class: `mark dot s${row.path.line.colour}`, cx: row.px, cy: row.py, r: row === near ? 4 : 2.5 }));
    if (paths.length > 1 && !near.path.below) {
      for (const { path } of rows) path.elements.forEach((element) => element.classList.toggle("far", paths.length > 6 && path !== near.path));
      near.path.elements.forEach((element) => element.classList.add("near"));
    }
    const left_out = Math.max(0, rows.length - TOLD);
    if (left_out) rows = [...rows].sort((a, b) => distance(a) - distance(b)).slice(0, TOLD);
    const places = near.path.line;
    const named = across === "ranks" ? `${plainExact(Number(places.steps[near.at].toPrecision(3)))} ranks` : `step ${plainExact(places.steps[near.at])}`;
    const where = [named, places.seconds.length ? `${trimZeros((places.seconds[near.at] ?? NaN).toFixed(2))} s` : ""].filter(Boolean).join(", ");
    this.tell(where, rows, near, left_out, px);
    if (spoken) announce(`${where}: ${rows.map((row) => `${row.path.line.name} ${exactText(row.own, this.chart.unit)}`).join("; ")}`);
  }

  tell(where, rows, near, left_out, px) {
    const head = document.createElement("div"), table = document.createElement("table");
    head.textContent = where;
    // What lies on top is told first.
    for (const row of near.path.below ? [...rows].reverse() : rows) {
      const line = table.insertRow();
      line.className = row === near ? "first" : "";
      const swatch = document.createElement("span");
      swatch.className = `swatch s${row.path.line.colour} d${row.path.line.dash}`;
      line.insertCell().append(swatch, row.path.line.name);
      line.insertCell().textContent = exactText(row.own, this.chart.unit);
    }
    this.tip.replaceChildren(head, table);
    if (left_out) this.tip.append(`and ${left_out} more`);
    if (this.chart.kind === "areas") this.tip.append(`together ${exactText(rows.reduce((sum, row) => sum + row.own, 0), this.chart.unit)}`);
    this.tip.hidden = false;
    const ratio = this.canvas.clientWidth / this.view.width, at = this.canvas.offsetLeft + px * ratio;
    const wide = this.tip.offsetWidth, room = this.figure.clientWidth;
    this.tip.style.left = `${at + wide + 20 > room ? Math.max(4, at - wide - 12) : at + 12}px`;
    this.tip.style.top = `${this.canvas.offsetTop + 12}px`;
  }
}

const plainExact = (value) => (value === null || value === undefined ? "–" : Number.isInteger(value) ? value.toLocaleString("en") : String(value));

const announcer = document.createElement("div");
announcer.className = "announce";
announcer.setAttribute("aria-live", "polite");
document.body.append(announcer);
const announce = (text) => { announcer.textContent = text; };

const plots = [];
// Charts are drawn when they come into view; of many runs there are many.
const inView = new Set();
function drawAll() {
  for (const plot of plots) {
    plot.drawn = false;
    if (inView.has(plot)) plot.draw();
  }
}
