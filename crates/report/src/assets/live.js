// A run under way: its new points, as the server tells of them.

const byKey = new Map();
for (const plot of plots)
  for (const line of plot.chart.lines) {
    if (!byKey.has(line.key)) byKey.set(line.key, []);
    byKey.get(line.key).push([plot, line]);
  }

const badge = document.querySelector(".lead .badge");
const sayState = (text) => { if (badge) badge.textContent = text; };
const source = new EventSource(data.events);
source.addEventListener("open", () => sayState("under way, live"));
source.addEventListener("error", () => sayState("under way, connection lost"));

// The step of how many, and the time left at the pace of the last lines.
const PACE_LINES = 20;
const bar = document.querySelector(".progress progress"), told = document.querySelector(".progress span");
const paceLine = data.charts.flatMap((chart) => chart.lines).filter((line) => line.key.startsWith("metrics/") && !line.key.startsWith("metrics/test_") && line.seconds.length).sort((a, b) => b.steps.length - a.steps.length)[0];
let progress = null;
function showProgress() {
  if (!progress || !told) return;
  const steps = paceLine ? paceLine.steps.slice(-PACE_LINES) : [], seconds = paceLine ? paceLine.seconds.slice(-PACE_LINES) : [];
  const pace = (steps[steps.length - 1] - steps[0]) / (seconds[seconds.length - 1] - seconds[0]);
  const step = Math.max(progress.step, steps[steps.length - 1] ?? 0), left = (progress.total - step) / pace;
  const rest = progress.paused ? ", paused" : pace > 0 && left >= 0 && Number.isFinite(left) ? `, ${durationText(left)} left` : "";
  if (bar && progress.total) bar.value = step / progress.total;
  told.textContent = progress.total ? `step ${step.toLocaleString("en")} of ${progress.total.toLocaleString("en")}${rest}` : `step ${step.toLocaleString("en")}`;
}
source.addEventListener("progress", (event) => {
  progress = JSON.parse(event.data);
  showProgress();
});

// What the page has no place for yet, such as the first evaluation, comes with the page.
let reloading = false;
const reload = () => {
  source.close();
  if (!reloading) setTimeout(() => location.reload(), 1000);
  reloading = true;
};

source.addEventListener("points", (event) => {
  const grown = new Set();
  for (const [key, step, seconds, value] of JSON.parse(event.data)) {
    const places = byKey.get(key);
    if (!places && key.startsWith("metrics/") && step > 1) reload();
    for (const [plot, line] of places || []) {
      if (line.seconds.length === line.steps.length && seconds !== null) line.seconds.push(seconds);
      line.steps.push(step);
      line.values.push(value);
      grown.add(plot);
    }
    document.querySelectorAll("dd[data-key]").forEach((place) => {
      if (place.dataset.key === key) place.textContent = exactText(value, "plain");
    });
  }
  showProgress();
  requestAnimationFrame(() => {
    for (const plot of grown) {
      plot.drawn = false;
      if (inView.has(plot)) plot.draw();
    }
  });
});
source.addEventListener("changed", reload);
