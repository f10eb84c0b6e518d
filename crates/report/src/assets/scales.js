// Numbers as they are written, round places along an axis, and smoothing.

const trimZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function plainTick(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9 || size < 1e-3) return value.toExponential(1).replace(/\.0e/, "e").replace("e+", "e");
  if (size >= 1e6) return trimZeros((value / 1e6).toFixed(2)) + "M";
  if (size >= 1e4) return trimZeros((value / 1e3).toFixed(1)) + "k";
  return trimZeros(value.toFixed(Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(size))))));
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const bytePower = (value) => Math.min(5, Math.floor(Math.log(Math.max(1, Math.abs(value))) / Math.log(1024) + 1e-9));

function withUnit(value, unit, plain) {
  if (value === null || !Number.isFinite(value)) return "–";
  switch (unit) {
    case "bytes":
    case "bytes-per-second": {
      const power = bytePower(value);
      return `${plain(value / 1024 ** power)} ${BYTES[power]}${unit === "bytes" ? "" : "/s"}`;
    }
    case "share": return `${plain(100 * value)} %`;
    case "percent": return `${plain(value)} %`;
    case "seconds": return `${plain(value)} s`;
    case "watts": return `${plain(value)} W`;
    case "joules": return `${plain(value)} J`;
    default: return plain(value);
  }
}

const tickText = (value, unit) => withUnit(value, unit, plainTick);

const exactText = (value, unit) => withUnit(value, unit, (number) => {
  const size = Math.abs(number);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? number.toExponential(3) : trimZeros(number.toPrecision(5)).replace(/e\+?\d+$/, "");
});

function linearTicks(low, high, count, unit) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const base = unit.startsWith("bytes") ? 1024 ** bytePower(high) : 1;
  const rough = span / base / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((step) => step * power >= rough * 0.999) * power * base;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * span; at++) ticks.push(Math.abs(at * step) < step * 1e-9 ? 0 : at * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [], decades = Math.log10(high / low), parts = decades > 3 ? [1] : decades > 1 ? [1, 3] : [1, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil(decades / 8));
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every)
    for (const part of parts) if (part * 10 ** power >= low && part * 10 ** power <= high) ticks.push(part * 10 ** power);
  return ticks.length ? ticks : [low, high];
}

// A mean that forgets, freed of its start at zero, as in Adam: the smoothing of TensorBoard.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let mean = 0, known = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value;
    known = known * weight + (1 - weight);
    return mean / known;
  });
}

// The place in sorted numbers nearest to one.
function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle; else high = middle;
  }
  return Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
}
