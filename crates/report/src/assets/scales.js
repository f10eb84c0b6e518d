// Numbers with units, round places along an axis, widths of texts, and smoothing: the rules of the crate phalanx-charts.

const trimZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// The widths of ASCII characters from the space on, in hundredths of the font size.
const ADVANCES = [
  32, 40, 46, 84, 64, 95, 78, 28, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84, 84, 84, 53,
  100, 68, 69, 70, 77, 63, 58, 78, 75, 30, 30, 66, 56, 86, 75, 79, 60, 79, 70, 64, 61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50,
  50, 61, 64, 55, 64, 62, 35, 64, 63, 28, 28, 58, 28, 97, 63, 61, 64, 64, 41, 52, 39, 63, 59, 82, 59, 59, 53, 64, 34, 64, 84,
];
const FONT_SIZE = 12;
function textWidth(text) {
  let sum = 0;
  for (const letter of text) sum += ADVANCES[letter.codePointAt(0) - 32] ?? (letter.codePointAt(0) >= 0x1100 ? 105 : 70);
  return (sum * FONT_SIZE) / 100;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// The multiple of a unit for numbers up to a magnitude: its factor and its name.
function measureOf(unit, largest) {
  const from = (multiples) => multiples.find(([first]) => largest >= first).slice(1);
  switch (unit) {
    case "bytes":
    case "bytes-per-second": {
      const power = Math.min(5, Math.floor(Math.log(Math.max(1, largest)) / Math.log(1024) + 1e-9));
      return [1024 ** power, BYTES[power] + (unit === "bytes" ? "" : "/s")];
    }
    case "share": return [0.01, "%"];
    case "percent": return [1, "%"];
    case "seconds": return largest <= 0 ? [1, "s"] : from([[7200, 3600, "h"], [300, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"]]);
    case "watts": return [1, "W"];
    case "joules": return from([[1e4, 1e3, "kJ"], [0, 1, "J"]]);
    case "samples-per-second": return [1, "samples/s"];
    case "per-second": return [1, "1/s"];
    default: return [1, ""];
  }
}

// A number with five digits and its unit.
function exactText(value, unit) {
  if (value === null || !Number.isFinite(value)) return "–";
  const [factor, name] = measureOf(unit, Math.abs(value)), number = value / factor, size = Math.abs(number);
  const text = unit === "count" && Number.isInteger(value) ? value.toLocaleString("en")
    : size !== 0 && (size < 1e-3 || size >= 1e7) ? number.toExponential(3)
    : trimZeros(number.toPrecision(5)).replace(/e\+?\d+$/, "");
  return name ? `${text} ${name}` : text;
}

function roundStep(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value) ?? value;
}

function linearTicks(low, high, count, whole) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const isWhole = whole && Math.ceil(low) <= high;
  const step = Math.max(roundStep((span / Math.max(1, count)) * 0.999), isWhole ? 1 : 0), first = Math.ceil(low / step - 1e-9), found = [];
  for (let at = 0; at <= 2 * Math.max(1, count); at++) {
    const tick = (first + at) * step;
    if (tick > high + 1e-9 * span) break;
    found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return found.length || count >= 12 ? found : linearTicks(low, high, count + 1, whole);
}

function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const of = (every, factors) => {
    const found = [];
    for (let power = first; power <= last; power++)
      if (power % every === 0) for (const factor of factors) found.push(factor * Number(`1e${power}`));
    return found.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  };
  const fine = of(1, [1, 2, 5]);
  if (fine.length <= Math.max(2, count)) return fine.length < 2 ? linearTicks(low, high, count, false) : fine;
  for (let every = 1; ; every++) {
    const coarse = of(every, [1]);
    if (coarse.length <= Math.max(1, count)) return coarse.length ? coarse : fine.slice(0, 1);
  }
}

// The labels of the ticks of a linear axis: with one suffix, and as many decimals as their distance needs.
function tickLabels(ticks) {
  const largest = Math.max(0, ...ticks.map(Math.abs));
  let step = Infinity;
  for (let at = 1; at < ticks.length; at++) step = Math.min(step, Math.abs(ticks[at] - ticks[at - 1]));
  if (!Number.isFinite(step) || step <= 0) step = largest * 1e-3;
  const decimals = (step) => Math.min(12, Math.max(0, -Math.floor(Math.log10(step * (1 + 1e-9)))));
  if (largest === 0) return ticks.map(() => "0");
  if (largest < 1e-3 || largest >= 1e12)
    return ticks.map((tick) => {
      if (tick === 0) return "0";
      const [number, power] = tick.toExponential(decimals(step / 10 ** Math.floor(Math.log10(Math.abs(tick))))).split("e");
      return `${trimZeros(number)}e${power.replace("+", "")}`;
    });
  const [factor, suffix] = [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"], [0, 1, ""]].find(([first]) => largest >= first).slice(1);
  const digits = decimals(step / factor);
  return ticks.map((tick) => (tick === 0 ? "0" : trimZeros((tick / factor).toFixed(digits)) + suffix));
}

// A scale from numbers to coordinates. Without a range it is one of 0 to 1; a single number is centred.
function scaleOf(range, logarithmic, from, to) {
  let [low, high] = range || [0, 1];
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const room = Math.abs(low) > 1e-9 ? 0.5 * Math.abs(low) : 0.5;
    [low, high] = logarithmic ? [low / 2, high * 2] : [low - room, high + room];
  }
  return placed({ logarithmic, low, high, from, to });
}

// Room at both ends, so that lines do not run along the edges.
function withRoom(scale) {
  if (scale.logarithmic) {
    const room = (scale.high / scale.low) ** 0.04;
    return placed({ ...scale, low: scale.low / room, high: scale.high * room });
  }
  const room = 0.04 * (scale.high - scale.low);
  return placed({ ...scale, low: scale.low >= 0 && scale.low < room ? 0 : scale.low - room, high: scale.high + room });
}

function placed(scale) {
  const { logarithmic, low, high, from, to } = scale;
  const share = logarithmic ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  return { ...scale, at: (value) => from + share(value) * (to - from) };
}

// About `count` ticks of a scale with their coordinates and labels, and the name of their unit.
function ticksOf(scale, unit, count) {
  const middle = scale.logarithmic ? Math.exp(Math.log(scale.low) / 2 + Math.log(scale.high) / 2) : Math.max(Math.abs(scale.low), Math.abs(scale.high));
  const [factor, name] = measureOf(unit, middle), low = scale.low / factor, high = scale.high / factor;
  const numbers = scale.logarithmic ? logTicks(low, high, count) : linearTicks(low, high, count, unit === "count");
  const labels = scale.logarithmic ? numbers.flatMap((number) => tickLabels([number])) : tickLabels(numbers);
  return [numbers.map((number, at) => ({ at: scale.at(number * factor), middle: scale.at(number * factor), label: labels[at] })), name];
}

// The ticks of an x axis that fit between two coordinates.
function fittingTicks(scale, unit, first, last) {
  const gap = 12, half = (tick) => textWidth(tick.label) / 2;
  let ticks = [], name = "";
  for (let count = Math.floor(Math.min(10, Math.max(1, (scale.to - scale.from) / 56))); count >= 1; count--) {
    [ticks, name] = ticksOf(scale, unit, count);
    for (const tick of ticks) tick.middle = Math.max(first + half(tick), Math.min(last - half(tick), tick.at));
    if (ticks.every((tick, at) => at === 0 || ticks[at - 1].middle + half(ticks[at - 1]) + gap <= tick.middle - half(tick))) break;
  }
  let free = -Infinity;
  ticks = ticks.filter((tick) => {
    if (tick.middle - half(tick) < free) return false;
    free = tick.middle + half(tick) + gap;
    return true;
  });
  return [ticks, name];
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
