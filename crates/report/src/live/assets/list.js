// The list of runs: filtered, sorted and kept up to date.

const COLUMNS = ["state", "metrics.step", "metrics.test_accuracy", "metrics.loss", "metrics.test_loss", "summary.images_per_second", "config.train.strategy", "config.train.ranks", "written"];
const view = { runs: [], columns: [...COLUMNS], sort: "written", up: false, chosen: new Set() };
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

// Of the usual columns, those that no run has are left out.
const shownColumns = () => view.columns.filter((key) => !COLUMNS.includes(key) || view.runs.some((run) => valueOf(run, key) !== undefined));

const valueOf = (run, key) => (key === "path" || key === "state" || key === "written" ? run[key] : run.keys[key]);

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
  if (!parts) return (run) => run.path.toLowerCase().includes(word.toLowerCase());
  const [, key, operator, text] = parts, number = Number(text), isNumber = text !== "" && !Number.isNaN(number);
  return (run) => {
    const value = valueOf(run, key);
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
    const sortButton = element("button", { type: "button", title: key }, key === "path" ? "run" : key.replace(/^(config|metrics|summary)\./, "").replaceAll("_", " "));
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

function draw() {
  const focused = document.activeElement && table.contains(document.activeElement) ? document.activeElement.title || document.activeElement.value : null;
  head();
  const conditions = filter.value.split(/\s+/).filter(Boolean).map(condition);
  const runs = view.runs.filter((run) => conditions.every((holds) => holds(run)));
  runs.sort((a, b) => compareValues(valueOf(a, view.sort), valueOf(b, view.sort)) || a.path.localeCompare(b.path));
  table.tBodies[0].replaceChildren(...runs.map((run) => {
    const box = element("input", { type: "checkbox", checked: view.chosen.has(run.path), value: run.path });
    box.setAttribute("aria-label", `Choose ${run.path}`);
    box.addEventListener("change", () => {
      if (box.checked) view.chosen.add(run.path); else view.chosen.delete(run.path);
      compareButton.disabled = view.chosen.size < 2;
    });
    const link = element("a", { href: `/run/${address(run.path)}` }, run.path || ".");
    const cells = shownColumns().map((key) => {
      const value = valueOf(run, key);
      if (key !== "state") return element("td", { className: value === undefined ? "none" : typeof value === "number" ? "number" : "" }, written(value, key));
      const kind = value === "finished" ? "good" : value === "under way" ? "going" : "bad";
      return element("td", {}, element("span", { className: `badge ${kind}` }, value));
    });
    return element("tr", {}, element("td", {}, box), element("th", { scope: "row" }, link), ...cells);
  }));
  if (focused) [...table.querySelectorAll("button, input")].find((one) => (one.title || one.value) === focused)?.focus();
  const going = view.runs.filter((run) => run.state === "under way").length;
  const told = `${runs.length === view.runs.length ? "" : `${runs.length} of `}${view.runs.length} runs, ${going} under way`;
  const state = document.getElementById("state");
  if (state.textContent !== told) state.textContent = told;
}

function keys() {
  const all = new Set(["written", "state"]);
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
      view.runs = JSON.parse(text);
      keys();
      draw();
    }
  } catch {
    document.getElementById("state").textContent = "The server is gone.";
  }
  setTimeout(look, document.hidden ? 15000 : 3000);
}
look();
