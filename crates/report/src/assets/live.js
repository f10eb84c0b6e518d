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
  requestAnimationFrame(() => {
    for (const plot of grown) {
      plot.drawn = false;
      if (inView.has(plot)) plot.draw();
    }
  });
});
source.addEventListener("changed", reload);
