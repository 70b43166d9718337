// Curves on a canvas: lines with bands, drawn over the axes, scales and zoom of uPlot.
//
// The arms of a chart are measured at different rounds, so each line brings its own x; uPlot is given the corners alone.
import uPlot from "./vendor/uplot/uPlot.esm.js";

const HEIGHT = 420;
const FAINT = 0.14;

/** What lies between `min` and `max`, with some room on each side; on a logarithmic axis as much of a decade. */
function padded(min, max, log) {
  if (log) {
    const room = Math.max(0.04 * Math.log10(max / min), 0.02);
    return [min * 10 ** -room, max * 10 ** room];
  }
  const room = max > min ? 0.04 * (max - min) : Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
}

/** The index of the last of ascending `xs` that is not above `x`, or of the next one where that is nearer; -1 of none. */
export function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low + 1 < xs.length && xs[low + 1] - x < x - xs[low] ? low + 1 : low;
}

/**
 * A line: `{key, colour, dash, x, mean, low, high, theory}`, lists of one length and ascending `x`; `theory` is `{x, y}` or null.
 */
export class Chart {
  /** @param {HTMLElement} root to be filled @param {(x: number | null, spoken: boolean) => void} told of where the cursor is */
  constructor(root, told) {
    this.root = root;
    this.told = told;
    this.lines = [];
    this.options = { log: false, xLabel: "", yLabel: "", integers: true };
    this.view = null;
    this.focused = null;
    this.plot = null;
    this.width = 0;
    new ResizeObserver(() => this.#resize()).observe(root);
    root.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Draw these lines; what is zoomed into stays, unless an axis has become another. */
  show(lines, options) {
    const renewed = !this.plot || options.log !== this.options.log || options.xLabel !== this.options.xLabel || options.yLabel !== this.options.yLabel;
    this.lines = lines;
    this.options = options;
    if (renewed) this.rebuild();
    else this.#scale();
  }

  /** Begin anew, with the colours of the theme that there is now. */
  rebuild() {
    this.view = null;
    this.plot?.destroy();
    this.plot = null;
    this.width = this.root.clientWidth;
    if (!this.width) return;
    this.plot = new uPlot(this.#settings(), [[0, 1], [null, null]], this.root);
    this.#scale();
  }

  /** Bring one line forward, by its key; null none. */
  focus(key) {
    if (key === this.focused) return;
    this.focused = key;
    this.plot?.redraw(false);
  }

  reset() {
    this.view = null;
    this.#scale();
    this.#told();
  }

  get zoomed() {
    return this.view !== null;
  }

  /** The ends of what is zoomed into; null where all is shown. */
  get span() {
    return this.view?.x ?? null;
  }

  #told() {
    this.root.dispatchEvent(new CustomEvent("fedq:zoom"));
  }

  #settings() {
    const style = getComputedStyle(this.root);
    const [text, line] = [style.getPropertyValue("--muted"), style.getPropertyValue("--line")];
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, labelFont: "13px system-ui, sans-serif", font: "12px system-ui, sans-serif", labelSize: 22 };
    const { log, xLabel, yLabel, integers } = this.options;
    // Less than a decade and a half has marks at 2 and 5 too.
    const wanted = (plot, tick) => !log || isDecade(tick) || (plot.scales.y.max < 32 * plot.scales.y.min && (isDecade(tick / 2) || isDecade(tick / 5)));
    const marked = (plot, ticks) => ticks.map((tick) => (wanted(plot, tick) ? tick : null));
    return {
      width: this.width,
      height: HEIGHT,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, auto: false }, y: { auto: false, distr: log ? 3 : 1 } },
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [
        { ...axis, label: xLabel, size: 36, incrs: integers ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] : undefined, values: (_, ticks) => ticks.map(short) },
        { ...axis, label: yLabel, size: 64, grid: { ...axis.grid, filter: marked }, ticks: { ...axis.ticks, filter: marked }, values: (plot, ticks) => ticks.map((tick) => (tick !== null && wanted(plot, tick) ? short(tick) : "")) },
      ],
      cursor: { drag: { x: true, y: true, uni: 24, setScale: false }, points: { show: false }, bind: { dblclick: () => () => this.reset() } },
      hooks: {
        draw: [(plot) => this.#draw(plot)],
        setSelect: [(plot) => this.#select(plot)],
        setCursor: [(plot) => this.#moved(plot)],
      },
    };
  }

  /** Set the scales: to what is zoomed into, or to what there is. */
  #scale() {
    if (!this.plot) return;
    const x = this.view?.x ?? this.#extentX();
    const y = this.view?.y ?? this.#extentY(x);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: x[0], max: x[1] });
      this.plot.setScale("y", { min: y[0], max: y[1] });
    });
    this.plot.redraw(false);
  }

  #extentX() {
    let [min, max] = [Infinity, -Infinity];
    for (const { x } of this.lines) {
      if (!x.length) continue;
      min = Math.min(min, x[0]);
      max = Math.max(max, x[x.length - 1]);
    }
    if (min > max) return [0, 1];
    return min === max ? [min - 1, max + 1] : [min, max];
  }

  #extentY([from, to]) {
    const { log } = this.options;
    let [min, max] = [Infinity, -Infinity];
    const take = (value) => {
      if (value === null || !Number.isFinite(value) || (log && value <= 0)) return;
      min = Math.min(min, value);
      max = Math.max(max, value);
    };
    for (const { x, mean, low, high } of this.lines) {
      for (let at = 0; at < x.length; at++) {
        if (x[at] < from || x[at] > to) continue;
        take(mean[at]);
        take(high[at]);
        if (!log) take(low[at]);
      }
    }
    return min > max ? (log ? [0.1, 1] : [0, 1]) : padded(min, max, log);
  }

  #draw(plot) {
    const { ctx, bbox } = plot;
    const px = (value) => plot.valToPos(value, "x", true);
    const floor = bbox.top + bbox.height + 1e4;
    const { log } = this.options;
    const py = (value) => (log && value <= 0 ? floor : Math.max(-1e5, Math.min(1e5, plot.valToPos(value, "y", true))));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineJoin = "round";
    const some = this.focused !== null && this.lines.some((line) => line.key === this.focused);
    const order = some ? [...this.lines].sort((a, b) => (a.key === this.focused) - (b.key === this.focused)) : this.lines;
    for (const line of order) this.#drawBand(ctx, line, px, py, some);
    for (const line of order) this.#drawLine(ctx, line, px, py, some);
    for (const line of order) this.#drawTheory(ctx, line, px, py);
    ctx.restore();
  }

  #drawBand(ctx, line, px, py, some) {
    if (!line.low || (some && line.key !== this.focused)) return;
    const { x, low, high } = line;
    ctx.beginPath();
    for (let at = 0; at < x.length; at++) ctx.lineTo(px(x[at]), py(high[at]));
    for (let at = x.length - 1; at >= 0; at--) ctx.lineTo(px(x[at]), py(low[at]));
    ctx.closePath();
    ctx.globalAlpha = FAINT;
    ctx.fillStyle = line.colour;
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  #drawLine(ctx, line, px, py, some) {
    const { x, mean } = line;
    const forward = line.key === this.focused;
    ctx.globalAlpha = some && !forward ? 0.3 : 1;
    ctx.strokeStyle = ctx.fillStyle = line.colour;
    ctx.lineWidth = (forward ? 2.6 : 1.6) * devicePixelRatio;
    ctx.setLineDash(line.dash.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    for (let at = 0; at < x.length; at++) ctx.lineTo(px(x[at]), py(mean[at]));
    ctx.stroke();
    ctx.setLineDash([]);
    if (x.length === 1) {
      ctx.beginPath();
      ctx.arc(px(x[0]), py(mean[0]), 3 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  #drawTheory(ctx, line, px, py) {
    if (!line.theory) return;
    ctx.strokeStyle = getComputedStyle(this.root).getPropertyValue("--text");
    ctx.lineWidth = 1.2 * devicePixelRatio;
    ctx.setLineDash([1.5 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    for (let at = 0; at < line.theory.x.length; at++) {
      if (line.theory.y[at] !== null) ctx.lineTo(px(line.theory.x[at]), py(line.theory.y[at]));
    }
    ctx.stroke();
    ctx.setLineDash([]);
  }

  #select(plot) {
    const { left, top, width, height } = plot.select;
    if (width < 4 && height < 4) return;
    const full = [plot.over.clientWidth, plot.over.clientHeight];
    const x = width > 3 ? [left, left + width] : [0, full[0]];
    const y = height > 3 && height < full[1] ? [top + height, top] : null;
    this.#zoom(x.map((at) => plot.posToVal(at, "x")), y?.map((at) => plot.posToVal(at, "y")) ?? null);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  #zoom(x, y) {
    this.view = { x, y };
    this.#scale();
    this.#told();
  }

  #moved(plot) {
    const { left, top } = plot.cursor;
    if (left === undefined || left < 0) {
      this.focus(null);
      this.told(null, false);
      return;
    }
    const x = plot.posToVal(left, "x");
    this.focus(this.#closest(plot, x, top));
    this.told(x, false);
  }

  /** The key of the line that passes within a few pixels of the cursor. */
  #closest(plot, x, top) {
    let [found, least] = [null, 14];
    for (const line of this.lines) {
      const at = nearest(line.x, x);
      if (at < 0) continue;
      const distance = Math.abs(plot.valToPos(line.mean[at], "y") - top);
      if (distance < least) [found, least] = [line.key, distance];
    }
    return found;
  }

  #key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = this.plot.scales.x;
    const width = this.plot.over.clientWidth;
    const at = this.plot.cursor.left >= 0 ? this.plot.cursor.left : width / 2;
    const steps = { ArrowRight: at + width / 40, ArrowLeft: at - width / 40, Home: 0, End: width };
    if (event.key in steps) {
      const left = Math.max(0, Math.min(width, steps[event.key]));
      this.plot.setCursor({ left, top: this.plot.over.clientHeight / 2 }, false);
      this.told(this.plot.posToVal(left, "x"), true);
    } else if (event.key === "+" || event.key === "-") {
      const middle = this.plot.posToVal(at, "x");
      const factor = event.key === "+" ? 0.5 : 2;
      const [first, last] = this.#extentX();
      const x = [Math.max(first, middle - (middle - min) * factor), Math.min(last, middle + (max - middle) * factor)];
      if (x[0] === first && x[1] === last) this.reset();
      else this.#zoom(x, null);
    } else if (event.key === "0") {
      this.reset();
    } else {
      return;
    }
    event.preventDefault();
  }

  #resize() {
    if (!this.root.clientWidth || this.root.clientWidth === this.width) return;
    if (!this.plot) return this.rebuild();
    this.width = this.root.clientWidth;
    this.plot.setSize({ width: this.width, height: HEIGHT });
  }
}

function isDecade(value) {
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-9;
}

/** A number of an axis in few characters. */
function short(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}
