"use strict";
// Tables that are sorted by a click on a column's name, and filtered by a text.

// A time in its two largest units.
function durationText(seconds) {
  const whole = Math.round(seconds), pad = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${pad(whole % 60)} s` : `${Math.floor(whole / 3600)} h ${pad(Math.floor(whole / 60) % 60)} min`;
}

const cellValue = (row, column) => {
  const cell = row.cells[column];
  if (!cell || cell.classList.contains("none")) return null;
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.toLowerCase();
};

function sortTable(table, column) {
  const head = table.tHead.rows[0].cells[column];
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row, column), row]);
  // What is not known comes last either way.
  const before = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : up ? before(a, b) : before(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.addEventListener("click", () => sortTable(table, column));
    cell.replaceChildren(button);
  });
}

document.querySelectorAll("table.sortable").forEach(sortable);

// A filter of all tables of a class. Folded tables open while there is a text.
document.querySelectorAll("input[data-filters]").forEach((input) => {
  input.closest(".filter").hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const table of document.getElementsByClassName(input.dataset.filters)) {
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const folded = table.closest("details");
      if (folded) folded.open = words.length > 0;
    }
  });
});
