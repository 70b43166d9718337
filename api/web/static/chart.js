// Curves: lines with bands over the axes of ECharts, with zoom, a tooltip, and keys.
//
// All lines are one series: a series for each of 144 arms takes ECharts four times as long.
import { Scale, axis, short, theme } from "./axes.js";
import { wordsOf } from "./service.js";
import { h } from "./elements.js";

const ROOM = { left: 72, right: 16, top: 10, bottom: 48 };
const FAINT = 0.14;
const NEAR_PX = 14;
const TOLD = 8;
const FAR_PX = 1e5;

/**
 * Line of a chart. All lists have one length, and `x` ascends.
 * @typedef {object} Line
 * @property {number} key
 * @property {string} name
 * @property {string} colour
 * @property {number[]} dash
 * @property {number[]} x
 * @property {number[]} mean
 * @property {number[] | null} low
 * @property {number[] | null} high
 * @property {number[] | null} raw what `mean` smooths
 * @property {{ x: number[], y: (number | null)[] } | null} theory
 */

/** @typedef {{ x: [number, number], y: [number, number] | null }} View what is zoomed into; null is all */

/**
 * What axes are to show.
 * @typedef {object} Options
 * @property {boolean} logX
 * @property {boolean} logY
 * @property {string} xLabel
 * @property {string} yLabel
 * @property {boolean} integers
 * @property {boolean} [fromZero] the vertical axis begins at zero
 * @property {(value: number) => string} [text] numbers of the vertical axis in words
 */

/**
 * Words of the tooltip.
 * @template {Line} T
 * @typedef {{ tell: (line: T, at: number) => string, place: (x: number) => string }} Words
 */

/** @typedef {{ left: number, top: number }} Point in pixels from the corner of the area of the lines */

/** @type {typeof import("./vendor/echarts/echarts.esm.min.js") | null} */
let echarts = null;

/** Load what draws charts, before the first is shown: a megabyte, which pages whose charts are in a closed tab do without. Without it charts say so. */
export async function prepare() {
  echarts ??= await import("./vendor/echarts/echarts.esm.min.js").catch(() => null);
}

/**
 * The index of the last of ascending `xs` that is not above `x`, or of the next one where that is nearer; -1 of none.
 * @param {number[]} xs
 * @param {number} x
 */
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
 * Pixels from the start of an axis of this length.
 * @param {number} share
 * @param {number} length
 */
function pixel(share, length) {
  return Math.max(-FAR_PX, Math.min(FAR_PX, share * length));
}

/**
 * Least and greatest of `values`, of those above zero where `log`; null of none.
 * @param {(number | null)[]} values
 * @param {boolean} log
 * @returns {[number, number] | null}
 */
function extent(values, log) {
  let [min, max] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    min = Math.min(min, value);
    max = Math.max(max, value);
  }
  return min > max ? null : [min, max];
}

/**
 * A chart of lines.
 * @template {Line} T
 */
export class Chart {
  /** @type {T[]} */
  lines = [];
  /** @type {Options} */
  options = { logX: false, logY: false, xLabel: "", yLabel: "", integers: true };
  /** @type {View | null} */
  view = null;
  /** @type {number | null} */
  focused = null;
  /** @type {number | null} */
  at = null;
  /** @type {import("./vendor/echarts/echarts.esm.min.js").ECharts | null} */
  canvas = null;
  x = new Scale([0, 1]);
  y = new Scale([0, 1]);

  /**
   * @param {HTMLElement} root to be filled; it tells of `fedq:zoom` and, with `{x, spoken}`, of `fedq:place`
   * @param {Words<T>} words
   */
  constructor(root, words) {
    this.root = root;
    this.words = words;
    this.holder = h("div", { class: "canvas" });
    this.mark = h("div", { class: "mark", hidden: true });
    this.selection = h("div", { class: "selection", hidden: true });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.flaw = h("p", { class: "flaw", role: "alert", hidden: true });
    root.replaceChildren(this.holder, this.mark, this.selection, this.tip, this.flaw);
    this.#listen();
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(root);
  }

  /**
   * Draw these lines.
   * @param {T[]} lines
   * @param {Options} options
   * @param {View | null} view
   */
  show(lines, options, view) {
    this.lines = lines;
    this.options = options;
    this.view = view;
    this.draw();
  }

  /** Draw again, with the colours of the theme that there is now. A chart that cannot be drawn says so in its place. */
  draw() {
    if (!this.root.clientWidth) return;
    this.flaw.hidden = echarts !== null;
    this.flaw.textContent = "The chart cannot be drawn: its program was not loaded. Reload the page.";
    if (!echarts) return;
    try {
      this.canvas ??= echarts.init(this.holder);
      this.#drawOn(this.canvas);
    } catch (error) {
      this.flaw.hidden = false;
      this.flaw.textContent = `The chart cannot be drawn: ${wordsOf(error)}`;
      console.error(error);
    }
  }

  /** @param {import("./vendor/echarts/echarts.esm.min.js").ECharts} canvas */
  #drawOn(canvas) {
    const { logX, logY, xLabel, yLabel, integers, text = short } = this.options;
    const colours = theme(this.root);
    this.x = this.#part(this.view?.x, logX) ?? this.#wholeX();
    this.y = this.#part(this.view?.y, logY) ?? this.#wholeY();
    /** @type {(marks: Map<number, number>, write: (value: number) => string, name: string, gap: number) => object} */
    const shares = (marks, write, name, gap) =>
      axis({
        min: 0,
        max: 1,
        name,
        gap,
        colours,
        places: [...marks.keys()],
        text: (share) => write(marks.get(share) ?? 0),
      });
    canvas.setOption(
      {
        animation: false,
        grid: { ...ROOM, outerBoundsMode: "none" },
        xAxis: shares(this.x.marks(integers), short, xLabel, 26),
        yAxis: shares(this.y.marks(), text, yLabel, 52),
        series: [this.#series()],
      },
      { replaceMerge: ["xAxis", "yAxis"] },
    );
  }

  /**
   * What is zoomed into; null without, or where a logarithmic axis cannot show it.
   * @param {[number, number] | null | undefined} range
   * @param {boolean} log
   */
  #part(range, log) {
    return range && (!log || range[0] > 0) ? new Scale(range, log) : null;
  }

  #series() {
    const { text } = theme(this.root);
    const some = this.lines.some((line) => line.key === this.focused);
    return {
      id: "lines",
      type: "custom",
      clip: true,
      silent: true,
      animation: false,
      data: this.lines.map(() => [0, 0]),
      /** @param {{ dataIndex: number }} item */
      renderItem: ({ dataIndex }) => this.#shapes(this.lines[dataIndex], some, text),
    };
  }

  destroy() {
    this.observer.disconnect();
    this.canvas?.dispose();
  }

  /**
   * Bring one line forward, by its key; null none.
   * @param {number | null} key
   */
  focus(key) {
    if (key === this.focused) return;
    this.focused = key;
    this.canvas?.setOption({ series: [this.#series()] });
  }

  reset() {
    this.#zoom(null);
  }

  get #area() {
    return {
      width: this.root.clientWidth - ROOM.left - ROOM.right,
      height: this.root.clientHeight - ROOM.top - ROOM.bottom,
    };
  }

  /** @param {number} value */
  #left(value) {
    return ROOM.left + pixel(this.x.share(value), this.#area.width);
  }

  /** @param {number} value */
  #top(value) {
    const { height } = this.#area;
    return ROOM.top + height - pixel(this.y.share(value), height);
  }

  /**
   * What ECharts draws of a line.
   * @param {T} line
   * @param {boolean} some whether a line is brought forward
   * @param {string} text the colour of text
   */
  #shapes({ key, colour, dash, x, mean, low, high, raw, theory }, some, text) {
    const forward = key === this.focused;
    const across = x.map((value) => this.#left(value));
    /** @param {number[]} values */
    const down = (values) => values.map((value) => this.#top(value));
    /** @type {(lefts: number[], tops: number[]) => number[][]} */
    const points = (lefts, tops) => lefts.map((left, at) => [left, tops[at]]);
    /** @type {(shape: number[][], style: object) => object} */
    const line = (shape, style) => ({
      type: "polyline",
      shape: { points: shape },
      style: { fill: null, ...style },
      z2: forward ? 20 : 10,
    });
    /** @type {object[]} */
    const children = [];
    if (low && high && (!some || forward)) {
      const tops = down(high);
      children.push({
        type: "polygon",
        shape: { points: [...points(across, tops), ...points(across, down(low)).reverse()] },
        style: { fill: colour, opacity: FAINT },
        z2: 1,
      });
    }
    if (raw)
      children.push(
        line(points(across, down(raw)), {
          stroke: colour,
          lineWidth: 1,
          opacity: some && !forward ? 0.1 : 0.3,
        }),
      );
    const middle = points(across, down(mean));
    const opacity = some && !forward ? 0.3 : 1;
    if (x.length === 1)
      children.push({
        type: "circle",
        shape: { cx: middle[0][0], cy: middle[0][1], r: 3 },
        style: { fill: colour, opacity },
      });
    else
      children.push(
        line(middle, {
          stroke: colour,
          lineWidth: forward ? 2.6 : 1.6,
          lineDash: dash.length ? dash : null,
          opacity,
          lineJoin: "round",
        }),
      );
    if (theory) {
      const points = theory.x.flatMap((value, at) => {
        const height = theory.y[at];
        return height === null ? [] : [[this.#left(value), this.#top(height)]];
      });
      children.push(line(points, { stroke: text, lineWidth: 1.2, lineDash: [1.5, 3] }));
    }
    return { type: "group", children };
  }

  /** From the first to the last place, with room only where it is needed: for a single one, and for those that a logarithmic axis has no other place for. */
  #wholeX() {
    const { logX } = this.options;
    const ends = this.lines.flatMap(({ x }) =>
      logX ? [x.find((value) => value > 0) ?? null, x.at(-1) ?? null] : [x[0] ?? null, x.at(-1) ?? null],
    );
    const found = extent(ends, logX) ?? (logX ? [1, 10] : [0, 1]);
    const needsRoom = found[0] === found[1] || (logX && this.lines.some(({ x }) => x[0] <= 0));
    return needsRoom ? Scale.around(...found, logX) : new Scale(found, logX);
  }

  #wholeY() {
    const { logY, fromZero } = this.options;
    const { min, max } = this.x;
    const seen = this.lines.map(({ x, mean, low, high, raw }) => {
      const inside = x.map((_, at) => at).filter((at) => !this.view || (x[at] >= min && x[at] <= max));
      const lists = [mean, ...(raw ? [raw] : []), ...(high ? [high] : []), ...(low && !logY ? [low] : [])];
      return lists.map((list) =>
        extent(
          inside.map((at) => list[at]),
          logY,
        ),
      );
    });
    const found = extent(
      seen.flat(2).filter((value) => value !== null),
      logY,
    );
    if (found && fromZero) return new Scale([0, 1.05 * found[1] || 1]);
    return Scale.around(...(found ?? (logY ? [0.1, 1] : [0, 1])), logY);
  }

  /** @param {View | null} view */
  #zoom(view) {
    this.view = view;
    this.draw();
    this.root.dispatchEvent(new CustomEvent("fedq:zoom"));
  }

  #listen() {
    const { root } = this;
    /** @param {PointerEvent} event */
    const place = (event) => {
      const box = root.getBoundingClientRect();
      const { width, height } = this.#area;
      const [left, top] = [event.clientX - box.left - ROOM.left, event.clientY - box.top - ROOM.top];
      return {
        left: Math.max(0, Math.min(width, left)),
        top: Math.max(0, Math.min(height, top)),
        inside: left >= 0 && left <= width && top >= 0 && top <= height,
      };
    };
    /** @type {Point | null} */
    let start = null;
    root.addEventListener("pointerdown", (event) => {
      const at = place(event);
      if (!this.canvas || event.button || !at.inside) return;
      if (event.pointerType !== "mouse") return this.#read(at.left, at.top);
      start = at;
      root.setPointerCapture(event.pointerId);
    });
    root.addEventListener("pointermove", (event) => {
      if (!this.canvas || event.pointerType !== "mouse") return;
      const at = place(event);
      if (start) this.#select(start, at);
      else if (at.inside) this.#read(at.left, at.top);
      else this.leave();
    });
    root.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [from, to] = [start, place(event)];
      start = null;
      this.selection.hidden = true;
      this.#selected(from, to);
    });
    root.addEventListener("pointercancel", () => {
      start = null;
      this.selection.hidden = true;
    });
    // A finger that is lifted leaves what it has read.
    root.addEventListener("pointerleave", (event) => !start && event.pointerType === "mouse" && this.leave());
    root.addEventListener("dblclick", () => this.reset());
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("blur", () => this.leave());
  }

  /**
   * Mark what is being selected.
   * @param {Point} from
   * @param {Point} to
   */
  #select(from, to) {
    this.leave();
    const { height } = this.#area;
    const tall = Math.abs(to.top - from.top) > 24;
    const top = tall ? Math.min(from.top, to.top) : 0;
    this.selection.hidden = false;
    Object.assign(this.selection.style, {
      left: `${ROOM.left + Math.min(from.left, to.left)}px`,
      width: `${Math.abs(to.left - from.left)}px`,
      top: `${ROOM.top + top}px`,
      height: `${tall ? Math.abs(to.top - from.top) : height}px`,
    });
  }

  /**
   * Zoom into what was selected: a stretch of the horizontal axis, and of the vertical one where it was tall.
   * @param {Point} from
   * @param {Point} to
   */
  #selected(from, to) {
    const { width, height } = this.#area;
    const [wide, tall] = [Math.abs(to.left - from.left) > 3, Math.abs(to.top - from.top) > 24];
    if (!wide) return;
    /** @type {(one: number, other: number) => [number, number]} */
    const ordered = (one, other) => [Math.min(one, other), Math.max(one, other)];
    const [left, right] = ordered(from.left, to.left);
    const [bottom, top] = ordered(height - from.top, height - to.top);
    this.#zoom({
      x: [this.x.value(left / width), this.x.value(right / width)],
      y: tall ? [this.y.value(bottom / height), this.y.value(top / height)] : null,
    });
  }

  /**
   * Tell the values at a place of the drawing: beside the pointer, and to who listens.
   * @param {number} left
   * @param {number | null} top
   */
  #read(left, top, spoken = false) {
    const x = this.x.value(left / this.#area.width);
    const found = this.lines.flatMap((line) => {
      const at = nearest(line.x, x);
      return at < 0
        ? []
        : [{ line, at, distance: top === null ? 0 : Math.abs(this.#top(line.mean[at]) - ROOM.top - top) }];
    });
    found.sort((one, other) => one.distance - other.distance);
    const closest = found.at(0);
    this.focus(top !== null && closest && closest.distance < NEAR_PX ? closest.line.key : null);
    const near = found.slice(0, TOLD).sort((one, other) => other.line.mean[other.at] - one.line.mean[one.at]);
    this.tip.replaceChildren(
      h("p", {}, this.words.place(x)),
      h(
        "ul",
        {},
        near.map(({ line, at }) => {
          const swatch = h("span", { class: "swatch" });
          swatch.style.background = line.colour;
          return h(
            "li",
            { class: line.key === this.focused ? "closest" : null },
            swatch,
            h("span", { class: "name" }, line.name),
            h("span", { class: "number" }, this.words.tell(line, at)),
          );
        }),
      ),
      found.length > near.length ? h("p", { class: "muted" }, `and ${found.length - near.length} more`) : "",
    );
    this.at = left;
    this.mark.hidden = this.tip.hidden = false;
    Object.assign(this.mark.style, {
      left: `${ROOM.left + left}px`,
      top: `${ROOM.top}px`,
      height: `${this.#area.height}px`,
    });
    const right = left > this.#area.width / 2;
    Object.assign(this.tip.style, {
      left: right ? "auto" : `${ROOM.left + left + 14}px`,
      right: right ? `${this.root.clientWidth - ROOM.left - left + 14}px` : "auto",
      top: `${Math.max(0, Math.min(top ?? 0, this.root.clientHeight - this.tip.offsetHeight - 4))}px`,
    });
    this.root.dispatchEvent(new CustomEvent("fedq:place", { detail: { x, spoken } }));
  }

  /** Tell nothing any more. */
  leave() {
    if (this.tip.hidden) return;
    this.mark.hidden = this.tip.hidden = true;
    this.focus(null);
    this.root.dispatchEvent(new CustomEvent("fedq:place", { detail: { x: null, spoken: false } }));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (!this.canvas || event.ctrlKey || event.metaKey || event.altKey) return;
    const { width } = this.#area;
    const at = this.at ?? width / 2;
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: at + width / 40, ArrowLeft: at - width / 40, Home: 0, End: width };
    if (event.key in steps) {
      this.#read(Math.max(0, Math.min(width, steps[event.key])), null, true);
    } else if (event.key === "+" || event.key === "-") {
      const factor = event.key === "+" ? 0.5 : 2;
      const { min: first, max: last } = this.#wholeX();
      const ends = [at - at * factor, at + (width - at) * factor].map((left) => this.x.value(left / width));
      /** @type {[number, number]} */
      const x = [Math.max(first, ends[0]), Math.min(last, ends[1])];
      this.#zoom(x[0] === first && x[1] === last ? null : { x, y: null });
    } else if (event.key === "0") {
      this.reset();
    } else if (event.key === "Escape") {
      this.leave();
    } else {
      return;
    }
    event.preventDefault();
  }

  #resize() {
    if (!this.root.clientWidth) return;
    this.canvas?.resize();
    this.draw();
  }
}
