// The list of runs: filtered, sorted and kept up to date.

const COLUMNS = ["state", "progress", "metrics.loss", "metrics.test_loss", "metrics.test_accuracy", "config.train.strategy", "config.train.ranks", "written"];
const view = { runs: [], sweeps: [], columns: [...COLUMNS], sort: "written", up: false, chosen: new Set(), open: new Set() };
const table = document.getElementById("runs"), filter = document.getElementById("filter");
const columnInput = document.getElementById("column"), compareButton = document.getElementById("compare");

// What is remembered of the columns is for this browser's own use, and may be refused.
try {
  const kept = JSON.parse(localStorage.getItem("phalanx-columns"));
  if (Array.isArray(kept) && kept.every((name) => typeof name === "string")) view.columns = kept;
} catch { /* the usual columns */ }
const keepColumns = () => {
  try { localStorage.setItem("phalanx-columns", JSON.stringify(view.columns)); } catch { /* next time the usual ones */ }
};

const OWN = ["path", "state", "written", "notes"];
const valueOf = (run, key) => (key === "progress" ? shareOf(run) : OWN.includes(key) ? run[key] : run.keys[key]);

// The share of the steps that a run has taken; undefined if it is unknown.
const shareOf = (run) => (run.state === "finished" ? 1 : run.progress?.total ? Math.min(1, run.progress.step / run.progress.total) : undefined);

// Columns without a value in any run are not shown.
const shownColumns = () => view.columns.filter((key) => view.runs.some((run) => valueOf(run, key) !== undefined));

// The keys that a name means: a key of its own, or all keys that end with it.
const keysOf = (run, name) => (OWN.includes(name) || name === "progress" || name in run.keys ? [name] : Object.keys(run.keys).filter((key) => key.endsWith(`.${name}`)));

const written = (value, key) => {
  if (value === undefined) return "–";
  if (key === "written") return new Date((value - 60 * new Date().getTimezoneOffset()) * 1000).toISOString().slice(0, 16).replace("T", " ");
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : size !== 0 && (size < 1e-3 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
};

// Words of a filter: a part of the path, or a key, a comparison and a value.
const CONDITION = /^([\w.]+)(!=|<=|>=|=|<|>|~)(.*)$/;
function condition(word) {
  const parts = CONDITION.exec(word);
  if (!parts) return (run) => `${run.path} ${run.notes}`.toLowerCase().includes(word.toLowerCase());
  const [, name, operator, text] = parts, number = Number(text), isNumber = text !== "" && !Number.isNaN(number);
  const holds = (value) => {
    if (value === undefined) return operator === "!=";
    if (operator === "~") return String(value).toLowerCase().includes(text.toLowerCase());
    const own = isNumber && !Number.isNaN(Number(value)) ? Number(value) : String(value), other = typeof own === "number" ? number : text;
    switch (operator) {
      case "=": return own === other;
      case "!=": return own !== other;
      case "<": return own < other;
      case "<=": return own <= other;
      case ">": return own > other;
      default: return own >= other;
    }
  };
  // A name may mean several keys: one of them is enough, but none may be equal.
  return (run) => {
    const values = keysOf(run, name).map((key) => valueOf(run, key));
    if (!values.length) return operator === "!=";
    return operator === "!=" ? values.every(holds) : values.some(holds);
  };
}

const address = (path) => path.split("/").map(encodeURIComponent).join("/");

function element(name, attributes, ...content) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...content);
  return made;
}

function head() {
  const row = element("tr", {});
  row.append(element("th", { scope: "col" }, "✓"));
  for (const key of ["path", ...shownColumns()]) {
    const sortButton = element("button", { type: "button", title: key }, key === "path" ? "run" : key.split(".").pop().replaceAll("_", " "));
    sortButton.addEventListener("click", () => {
      view.up = view.sort === key ? !view.up : true;
      view.sort = key;
      draw();
    });
    const cell = element("th", { scope: "col" }, sortButton);
    if (key === view.sort) cell.setAttribute("aria-sort", view.up ? "ascending" : "descending");
    if (key !== "path") {
      const remove = element("button", { type: "button", title: `Remove ${key}` }, " ×");
      remove.setAttribute("aria-label", `Remove the column ${key}`);
      remove.addEventListener("click", () => {
        view.columns = view.columns.filter((name) => name !== key);
        keepColumns();
        draw();
      });
      cell.append(remove);
    }
    row.append(cell);
  }
  table.tHead.replaceChildren(row);
}

function compareValues(a, b) {
  if (a === undefined || b === undefined) return a === b ? 0 : a === undefined ? 1 : -1;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return view.up ? order : -order;
}

// The bar of a share of steps, and what is left.
function progressCell(share, text) {
  const bar = element("progress", { max: 1, value: share ?? 0 });
  bar.setAttribute("aria-label", "Progress");
  return element("td", { className: "number" }, bar, text);
}

function cellsOf(run) {
  return shownColumns().map((key) => {
    const value = valueOf(run, key);
    if (key === "progress") {
      const { progress } = run;
      if (!progress) return element("td", { className: "none" }, run.keys["metrics.step"] === undefined ? "–" : `step ${written(run.keys["metrics.step"], key)}`);
      const left = progress.paused ? "paused" : progress.left === null ? "" : `${durationText(progress.left)} left`;
      return progressCell(value, [progress.total ? `${progress.step.toLocaleString("en")}/${progress.total.toLocaleString("en")}` : `step ${progress.step}`, left].filter(Boolean).join(", "));
    }
    if (key !== "state") return element("td", { className: value === undefined ? "none" : typeof value === "number" ? "number" : "" }, written(value, key));
    const kind = value === "finished" ? "good" : value === "under way" ? "going" : "bad";
    return element("td", {}, element("span", { className: `badge ${kind}` }, value));
  });
}

function rowOf(run, inside) {
  const box = element("input", { type: "checkbox", checked: view.chosen.has(run.path), value: run.path });
  box.setAttribute("aria-label", `Choose ${run.path}`);
  box.addEventListener("change", () => {
    if (box.checked) view.chosen.add(run.path); else view.chosen.delete(run.path);
    compareButton.disabled = view.chosen.size < 2;
  });
  const name = inside ? run.path.split("/").pop() : run.path || ".";
  const head = element("th", { scope: "row" }, element("a", { href: `/run/${address(run.path)}` }, name));
  if (run.notes) head.append(element("div", { className: "hint" }, run.notes.split("\n")[0]));
  return element("tr", { className: inside ? "inside" : "" }, element("td", {}, box), head, ...cellsOf(run));
}

// The common value of the runs of a sweep, or their range.
function commonValue(runs, key) {
  const values = runs.map((run) => valueOf(run, key)).filter((value) => value !== undefined);
  if (!values.length) return undefined;
  if (values.every((value) => value === values[0])) return values[0];
  return values.every((value) => typeof value === "number") ? [Math.min(...values), Math.max(...values)] : `${new Set(values).size} values`;
}

function cellsOfSweep(runs) {
  return shownColumns().map((key) => {
    if (key === "progress") {
      const shares = runs.map((run) => shareOf(run) ?? 0), left = runs.map((run) => run.progress?.left ?? 0).reduce((a, b) => a + b, 0);
      const isOver = !runs.some((run) => run.progress);
      return isOver ? element("td", { className: "none" }, `${runs.length} runs`) : progressCell(shares.reduce((a, b) => a + b, 0) / runs.length, left ? `${durationText(left)} left` : "");
    }
    if (key === "state") {
      const cell = element("td", {});
      for (const [state, kind] of [["finished", "good"], ["under way", "going"], ["interrupted", "bad"], ["ended without a summary", "bad"]]) {
        const count = runs.filter((run) => run.state === state).length;
        if (count) cell.append(element("span", { className: `badge ${kind}` }, count === runs.length ? state : `${count} ${state}`), " ");
      }
      return cell;
    }
    if (key === "written") return element("td", { className: "number" }, written(Math.max(...runs.map((run) => run.written)), key));
    const value = commonValue(runs, key);
    const text = Array.isArray(value) ? value.map((end) => written(end, key)).join(" … ") : written(value, key);
    return element("td", { className: value === undefined ? "none" : "number" }, text);
  });
}

// A sweep: a row that opens its tables and its runs.
function rowsOfSweep(sweep, runs, filtered) {
  const isOpen = view.open.has(sweep.path);
  const button = element("button", { type: "button", className: "fold", title: `Show ${sweep.path}` }, isOpen ? "▾" : "▸");
  button.setAttribute("aria-expanded", String(isOpen));
  button.addEventListener("click", () => {
    if (!view.open.delete(sweep.path)) view.open.add(sweep.path);
    draw();
  });
  const name = element("th", { scope: "row" }, element("a", { href: `/sweep/${address(sweep.path)}` }, sweep.path || "."), ` (${filtered})`);
  if (sweep.about) name.append(element("div", { className: "hint" }, sweep.about));
  const rows = [element("tr", { className: "sweep" }, element("td", {}, button), name, ...cellsOfSweep(runs))];
  if (!isOpen) return rows;
  for (const { title, head, rows: body } of sweep.tables) {
    const inner = element("table", {}, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))));
    inner.append(element("tbody", {}, ...body.map((cells) => element("tr", {}, ...cells.map((text) => element("td", {}, text))))));
    const cell = element("td", { colSpan: shownColumns().length + 1 }, element("b", {}, title), inner);
    rows.push(element("tr", { className: "inside" }, element("td", {}), cell));
  }
  return [...rows, ...runs.map((run) => rowOf(run, true))];
}

function draw() {
  const focused = document.activeElement && table.contains(document.activeElement) ? document.activeElement.title || document.activeElement.value : null;
  head();
  const conditions = filter.value.split(/\s+/).filter(Boolean).map(condition);
  const runs = view.runs.filter((run) => conditions.every((holds) => holds(run)));
  const inOrder = (a, b) => compareValues(valueOf(a, view.sort), valueOf(b, view.sort)) || a.path.localeCompare(b.path);
  runs.sort(inOrder);
  // A sweep stands where its first run would.
  const done = new Set(), rows = [];
  for (const run of runs) {
    const sweep = view.sweeps.find((sweep) => sweep.path === run.sweep);
    if (!sweep) rows.push(rowOf(run, false));
    else if (!done.has(sweep.path)) {
      done.add(sweep.path);
      const of = (all) => all.filter((other) => other.sweep === sweep.path), own = of(runs), all = of(view.runs);
      rows.push(...rowsOfSweep(sweep, own, own.length === all.length ? `${all.length} runs` : `${own.length} of ${all.length} runs`));
    }
  }
  table.tBodies[0].replaceChildren(...rows);
  if (focused) [...table.querySelectorAll("button, input")].find((one) => (one.title || one.value) === focused)?.focus();
  const going = view.runs.filter((run) => run.state === "under way").length;
  const told = `${runs.length === view.runs.length ? "" : `${runs.length} of `}${view.runs.length} runs, ${going} under way`;
  const state = document.getElementById("state");
  if (state.textContent !== told) state.textContent = told;
}

function keys() {
  const all = new Set(["written", "state", "progress", "notes"]);
  for (const run of view.runs) Object.keys(run.keys).forEach((key) => all.add(key));
  const list = document.getElementById("keys");
  if (list.children.length !== all.size) list.replaceChildren(...[...all].sort().map((value) => element("option", { value })));
  return all;
}

document.getElementById("choose").addEventListener("submit", (event) => event.preventDefault());
filter.addEventListener("input", draw);
columnInput.addEventListener("change", () => {
  const key = columnInput.value.trim();
  if (keys().has(key) && !view.columns.includes(key)) {
    view.columns.push(key);
    keepColumns();
    draw();
  }
  columnInput.value = "";
});
compareButton.addEventListener("click", () => {
  location.href = `/compare?${[...view.chosen].map((path) => `run=${encodeURIComponent(path)}`).join("&")}`;
});

let last = "";
async function look() {
  try {
    const text = await (await fetch("/api/runs")).text();
    if (text !== last) {
      last = text;
      ({ runs: view.runs, sweeps: view.sweeps } = JSON.parse(text));
      keys();
      draw();
    }
  } catch {
    document.getElementById("state").textContent = "The server is gone.";
  }
  setTimeout(look, document.hidden ? 15000 : 3000);
}
look();
