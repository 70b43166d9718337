// Marks of axes and the colours of a theme, for all charts.

const MOST = 9;
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b3a400"],
  dark: ["#4ba3e3", "#f08c46", "#2fc79a", "#d98fbb", "#e6a817", "#9bd6f7", "#e6eaef", "#f0e442"],
};
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3]];

/** Places of marks between `min` and `max`: 1, 2 and 5 of each decade or whole decades on a logarithmic axis that is long enough, else even steps. */
export function marks(min, max, { log = false, integers = false } = {}) {
  const within = (values) => values.filter((value) => value >= min && value <= max);
  if (log) {
    const first = Math.floor(Math.log10(min));
    const decades = Array.from({ length: Math.ceil(Math.log10(max)) - first + 1 }, (_, at) => first + at);
    const every = Math.ceil(decades.length / MOST);
    const choices = [decades.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))), decades.filter((power) => power % every === 0).map((power) => Number(`1e${power}`))];
    const found = choices.map(within).find(({ length }) => length >= 3 && length <= MOST);
    if (found) return found;
  }
  const rough = (max - min) / 6 || 1;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((digit) => digit * decade >= rough) * decade, integers ? 1 : 0);
  const start = Math.ceil(min / step);
  return within(Array.from({ length: Math.floor(max / step) - start + 1 }, (_, at) => Number(((start + at) * step).toPrecision(12))));
}

/** A number of an axis in few characters. */
export function short(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}

/** What lies between `min` and `max`, with some room on each side; on a logarithmic axis as much of a decade. */
export function padded(min, max, log) {
  if (log) {
    const room = Math.max(0.04 * Math.log10(max / min), 0.02);
    return [min * 10 ** -room, max * 10 ** room];
  }
  const room = max > min ? 0.04 * (max - min) : Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
}

/** The colours of the theme that there is now. */
export function theme(root) {
  const style = getComputedStyle(root);
  const [text, muted, line, surface, accent] = ["--text", "--muted", "--line", "--surface", "--accent"].map((name) => style.getPropertyValue(name));
  return { text, muted, line, surface, accent, dark: surface.match(/\d+/)?.[0] < 128 };
}

/** The colour and dashes of an arm. */
export function strokeOf(key, dark) {
  const colours = COLOURS[dark ? "dark" : "light"];
  return { colour: colours[key % colours.length], dash: DASHES[Math.floor(key / colours.length) % DASHES.length] };
}

/** An axis of numbers of ECharts, with marks at `places` or at even steps. */
export function axis({ min, max, log, integers, name, gap, colours, places = null }) {
  const customValues = places ?? marks(min, max, { log, integers });
  return {
    type: log ? "log" : "value",
    min, max, name,
    nameLocation: "middle",
    nameGap: gap,
    nameTextStyle: { color: colours.muted, fontSize: 13 },
    axisLabel: { customValues, color: colours.muted, formatter: short, hideOverlap: true },
    axisTick: { customValues, show: true, lineStyle: { color: colours.line } },
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.line } },
    splitLine: { lineStyle: { color: colours.line } },
  };
}

/** Call `draw` whenever the colours change. */
export function onTheme(draw) {
  document.addEventListener("fedq:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
