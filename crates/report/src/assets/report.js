// The report: its charts, and what is set for all of them.

const data = JSON.parse(document.getElementById("data").textContent);

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const plot = entry.target.plot;
    if (!entry.isIntersecting) inView.delete(plot);
    else {
      inView.add(plot);
      if (!plot.drawn) plot.draw();
    }
  }
}, { rootMargin: "300px" });

for (const chart of data.charts) {
  const figure = document.getElementById(chart.id);
  const plot = new Plot(figure, chart);
  figure.plot = plot;
  plots.push(plot);
  observer.observe(figure);
}
// Those at the top are not waited for.
plots.slice(0, 12).forEach((plot) => plot.draw());

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    requestAnimationFrame(drawAll);
  }
});

const controls = document.getElementById("controls");
if (controls) {
  controls.hidden = false;
  controls.addEventListener("submit", (event) => event.preventDefault());
  const smoothing = document.getElementById("smoothing"), told = document.getElementById("smoothing-value");
  smoothing.addEventListener("input", () => {
    shown.smoothing = Number(smoothing.value);
    told.textContent = smoothing.value;
    drawAll();
  });
  document.getElementById("scale").addEventListener("change", (event) => {
    shown.scale = event.target.value;
    drawAll();
  });
  controls.querySelectorAll("input[name=across]").forEach((input) => input.addEventListener("change", () => {
    shown.across = input.value;
    drawAll();
  }));
  document.getElementById("whole-range").addEventListener("click", () => {
    shown.zoom = {};
    drawAll();
  });
  // Browsers put back what was set before the page was loaded anew.
  controls.reset();
}

// Which runs are seen.
const boxes = [...document.querySelectorAll("input[data-run]")];
const pickRuns = (isPicked) => {
  for (const box of boxes) box.checked = isPicked(data.runs[Number(box.dataset.run)].name);
  takeRuns();
};
const takeRuns = () => {
  shown.hiddenRuns = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.dataset.run)));
  document.querySelectorAll(".sample").forEach((figure) => {
    figure.hidden = shown.hiddenRuns.has(Number(figure.id.replace("sample-", "")));
  });
  drawAll();
};
for (const box of boxes) {
  box.disabled = false;
  box.checked = true;
  box.addEventListener("change", takeRuns);
}
document.querySelectorAll(".picks").forEach((picks) => { picks.hidden = false; });
document.querySelectorAll("[data-pick]").forEach((button) => button.addEventListener("click", () => pickRuns(() => button.dataset.pick === "all")));
const pick = document.getElementById("pick");
if (pick) pick.addEventListener("input", () => pickRuns((name) => name.toLowerCase().includes(pick.value.toLowerCase())));

// Samples over time.
document.querySelectorAll(".sample").forEach((figure) => {
  const slider = figure.querySelector(".slider input"), output = figure.querySelector(".slider output");
  slider.hidden = slider.max === "0";
  slider.value = slider.max;
  slider.addEventListener("input", () => {
    figure.querySelectorAll("[data-step]").forEach((sample, at) => {
      sample.hidden = at !== Number(slider.value);
      if (!sample.hidden) output.textContent = sample.dataset.step;
    });
  });
});

// Charts of one rank at a time.
document.querySelectorAll(".choose").forEach((choose) => {
  choose.hidden = false;
  const select = choose.querySelector("select");
  const groups = [...choose.parentElement.querySelectorAll(".of-rank")];
  const take = () => groups.forEach((group) => { group.hidden = group.dataset.rank !== select.value; });
  select.addEventListener("change", take);
  take();
});
