// Marks of axes and the colours of a theme, for all charts.

const MOST = 9;
/** At each end of an axis, of what lies between. */
const ROOM = 0.04;
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b3a400"],
  dark: ["#4ba3e3", "#f08c46", "#2fc79a", "#d98fbb", "#e6a817", "#9bd6f7", "#e6eaef", "#f0e442"],
};
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3]];

/**
 * Places of marks between `min` and `max`: 1, 2 and 5 of each decade or whole decades on a logarithmic axis that is long enough, else even steps, or the ends where float64 has no such steps.
 * @param {number} min
 * @param {number} max
 */
export function marks(min, max, { log = false, integers = false } = {}) {
  /** @param {number[]} values */
  const within = (values) => values.filter((value) => value >= min && value <= max);
  if (log) {
    const first = Math.floor(Math.log10(min));
    const decades = Array.from({ length: Math.ceil(Math.log10(max)) - first + 1 }, (_, at) => first + at);
    const every = Math.ceil(decades.length / MOST);
    const choices = [
      decades.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))),
      decades.filter((power) => power % every === 0).map((power) => Number(`1e${power}`)),
    ];
    const found = choices.map(within).find(({ length }) => length >= 3 && length <= MOST);
    if (found) return found;
  }
  const rough = max / 6 - min / 6;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const digit = [1, 2, 5].find((digit) => digit * decade >= rough) ?? 10;
  const step = Math.max(digit * decade, integers ? 1 : 0);
  const [start, end] = [Math.ceil(min / step), Math.floor(max / step)];
  if (!(end - start < 2 * MOST)) return [min, max];
  return within(
    Array.from({ length: Math.max(0, end - start + 1) }, (_, at) =>
      Number(((start + at) * step).toPrecision(12)),
    ),
  );
}

/**
 * A number with an exponent, `shift` larger than its own, and `digits` digits behind the point.
 * @param {number} value
 * @param {number} digits
 */
export function exponential(value, digits, shift = 0) {
  const [mantissa, power] = value.toExponential(digits).split("e");
  return `${mantissa}e${Number(power) + shift}`;
}

/**
 * A number of an axis in few characters.
 * @param {number} value
 */
export function short(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return exponential(value, 3).replace(/\.?0*e/, "e");
  return String(Number(value.toPrecision(6)));
}

/**
 * A share in percent, in few characters; a hundred times the largest number is no number.
 * @param {number} value
 */
export function shortShare(value) {
  return Math.abs(value) < 1e300 ? short(100 * value) : exponential(value, 3, 2).replace(/\.?0*e/, "e");
}

/**
 * The number, or the largest one in place of an infinite one.
 * @param {number} value
 */
export function finite(value) {
  return Math.max(-Number.MAX_VALUE, Math.min(Number.MAX_VALUE, value));
}

/**
 * What lies between `min` and `max`, with some room on each side; on a logarithmic axis as much of a decade. The ends are finite, and above zero where `log`.
 * @param {number} min
 * @param {number} max
 * @param {boolean} log
 * @returns {[number, number]}
 */
export function padded(min, max, log) {
  if (log) {
    const room = Math.max(ROOM * (Math.log10(max) - Math.log10(min)), 0.02);
    const [low, high] = [min * 10 ** -room, max * 10 ** room].map((end) =>
      Math.max(Number.MIN_VALUE, finite(end)),
    );
    // Two of the smallest numbers may be nearer to each other than any room.
    return [low, low < high ? high : 2 * low];
  }
  const room = max > min ? ROOM * max - ROOM * min : Math.abs(max) * 0.1 || 1;
  return [finite(min - room), finite(max + room)];
}

/**
 * Where values lie on an axis, as shares of its length, which ECharts is given in place of numbers at which its own calculation overflows: `min` and `max`
 * at its ends, or within them by the share `room` of what lies between.
 */
export class Scale {
  /** @param {[number, number]} ends */
  constructor([min, max], log = false, room = 0) {
    this.min = min;
    this.max = max;
    this.log = log;
    this.room = room;
  }

  /**
   * An axis with room on each side of what lies between `min` and `max`.
   * @param {number} min
   * @param {number} max
   * @param {boolean} log
   */
  static around(min, max, log) {
    const isNarrow = log ? Math.log10(max) - Math.log10(min) < 0.5 : min === max;
    return new Scale(isNarrow ? padded(min, max, log) : [min, max], log, ROOM);
  }

  /**
   * 0 at the start of the axis, 1 at its end. On a logarithmic axis zero and negative values lie at its start, or beyond it where there is no room.
   * @param {number} value
   */
  share(value) {
    const { log, room } = this;
    if (log && value <= 0) return room ? room / 4 : -Infinity;
    return (this.#inner(value) + room) / (1 + 2 * room);
  }

  /**
   * The finite value at a share of the length, which may be beyond the ends.
   * @param {number} share
   */
  value(share) {
    const { min, max, log, room } = this;
    const inner = share * (1 + 2 * room) - room;
    if (inner === 0 || inner === 1) return inner ? max : min;
    const found = finite(
      log
        ? Math.exp(Math.log(min) + inner * (Math.log(max) - Math.log(min)))
        : (1 - inner) * min + inner * max,
    );
    return log ? Math.max(Number.MIN_VALUE, found) : found;
  }

  /** Marks by their share of the length. */
  marks(integers = false) {
    return new Map(
      marks(this.value(0), this.value(1), { log: this.log, integers }).map((value) => [
        this.share(value),
        value,
      ]),
    );
  }

  /** @param {number} value */
  #inner(value) {
    const { min, max, log } = this;
    if (log) return (Math.log(value) - Math.log(min)) / (Math.log(max) - Math.log(min));
    if (Number.isFinite(max - min)) return (value - min) / (max - min);
    return (value / 2 - min / 2) / (max / 2 - min / 2);
  }
}

/**
 * Colours of a theme.
 * @typedef {ReturnType<typeof theme>} Theme
 */

/**
 * The colours of the theme that there is now.
 * @param {HTMLElement} root
 */
export function theme(root) {
  const style = getComputedStyle(root);
  const [text, muted, line, surface, accent] = ["--text", "--muted", "--line", "--surface", "--accent"].map(
    (name) => style.getPropertyValue(name),
  );
  return { text, muted, line, surface, accent, dark: Number(surface.match(/\d+/)?.[0]) < 128 };
}

/**
 * The colour and dashes of an arm.
 * @param {number} key its index
 * @param {boolean} dark
 */
export function strokeOf(key, dark) {
  const colours = COLOURS[dark ? "dark" : "light"];
  return {
    colour: colours[key % colours.length],
    dash: DASHES[Math.floor(key / colours.length) % DASHES.length],
  };
}

/**
 * An axis of numbers of ECharts, with marks at `places` or at even steps, each with its `text`.
 * @param {{
 *   min: number,
 *   max: number,
 *   log?: boolean,
 *   integers?: boolean,
 *   name: string,
 *   gap?: number,
 *   colours: Theme,
 *   places?: number[] | null,
 *   text?: (value: number) => string,
 * }} about
 */
export function axis({ min, max, log, integers, name, gap, colours, places = null, text = short }) {
  const customValues = places ?? marks(min, max, { log, integers });
  return {
    type: log ? "log" : "value",
    min,
    max,
    name,
    nameLocation: "middle",
    nameGap: gap,
    nameTextStyle: { color: colours.muted, fontSize: 13 },
    axisLabel: { customValues, color: colours.muted, formatter: text, hideOverlap: true },
    axisTick: { customValues, show: true, lineStyle: { color: colours.line } },
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.line } },
    splitLine: { lineStyle: { color: colours.line } },
  };
}

/**
 * Call `draw` whenever the colours change.
 * @param {() => void} draw
 */
export function onTheme(draw) {
  document.addEventListener("fedq:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
