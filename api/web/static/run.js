// Log and resource use of one run, with what is new every few seconds until the run has ended.
import { onTheme, strokeOf, theme } from "./axes.js";
import { Chart, nearest, prepare } from "./chart.js";
import { byId, find, h } from "./elements.js";
import { drawLists } from "./lists.js";
import { Problem, call, showDeleted, tell, wordsOf } from "./service.js";

/** @import { LogLine, LogPage, ResourcePage, ResourceSample } from "../types/answers" */
/** @import { Line, View } from "./chart.js" */

/**
 * Chart of a figure.
 * @typedef {object} About
 * @property {string} name
 * @property {string} label
 * @property {string} unit
 * @property {(sample: ResourceSample) => number | null} value
 */

const BUSY_MS = 3000;
const IDLE_MS = 10_000;
const MOST_LINES = 1000;
/** Seconds without a sample in which no worker held the run. */
const GAP_S = 5;
/** Pixels from the end of the log within which new lines are scrolled to. */
const NEAR_END_PX = 40;
const ENDED = new Set(["succeeded", "failed", "cancelled", "deleted"]);
const LEVELS = ["debug", "info", "warning", "error", "critical"];
/** @type {[number, number, string][]} the least seconds, a unit's seconds, and its name */
const UNITS = [
  [3 * 86_400, 86_400, "Days"],
  [3 * 3600, 3600, "Hours"],
  [180, 60, "Minutes"],
  [0, 1, "Seconds"],
];
const GIGA = 1e9;
/** @type {About[]} */
const CHARTS = [
  { name: "CPU", label: "CPU, cores", unit: "cores", value: (sample) => sample.cpu_cores },
  { name: "Memory", label: "Memory, GB", unit: "GB", value: (sample) => sample.memory_bytes / GIGA },
  {
    name: "GPU",
    label: "GPU utilisation, %",
    unit: "%",
    value: (sample) => (sample.gpu_utilisation === null ? null : 100 * sample.gpu_utilisation),
  },
  {
    name: "GPU memory",
    label: "GPU memory, GB",
    unit: "GB",
    value: (sample) => (sample.gpu_memory_bytes === null ? null : sample.gpu_memory_bytes / GIGA),
  },
];

const root = byId("telemetry");
const path = `/v1/runs/${root.dataset.run}`;

/**
 * Figures of some digits, as `0.97`.
 * @param {number} value
 */
function digits(value) {
  return String(Number(value.toPrecision(3)));
}

/**
 * Points of a figure over seconds since `start`, at the beginnings and ends of samples; zero while no worker held the run.
 * @param {ResourceSample[]} samples
 * @param {About["value"]} value
 * @param {number} start
 */
function points(samples, value, start) {
  /** @type {number[]} */
  const x = [];
  /** @type {number[]} */
  const y = [];
  /** @type {number | null} */
  let end = null;
  for (const sample of samples) {
    const found = value(sample);
    if (found === null) continue;
    const until = Date.parse(sample.time) / 1000 - start;
    const from = Math.max(until - sample.seconds, end ?? -Infinity);
    if (end !== null && from - end > GAP_S) {
      x.push(end, from);
      y.push(0, 0);
    }
    if (end === null || from - end > GAP_S) {
      x.push(from);
      y.push(found);
    }
    x.push(until);
    y.push(found);
    end = until;
  }
  return { x, y };
}

class Usage {
  /** @type {ResourceSample[]} */
  samples = [];
  /** @type {Map<string, Chart<Line>>} */
  charts = new Map();
  /** @type {View | null} */
  view = null;
  unit = "";

  constructor() {
    onTheme(() => this.draw());
  }

  /** @param {ResourceSample[]} samples */
  add(samples) {
    this.samples.push(...samples);
    find(root, "[data-no-samples]").hidden = this.samples.length > 0;
    if (samples.length) this.draw();
  }

  draw() {
    if (!this.samples.length) return;
    const [first] = this.samples;
    const start = Date.parse(first.time) / 1000 - first.seconds;
    const span = Date.parse(this.samples[this.samples.length - 1].time) / 1000 - start;
    const [, size, unit] = UNITS.find(([least]) => span >= least) ?? UNITS[UNITS.length - 1];
    this.unit = unit.toLowerCase();
    const stroke = strokeOf(0, theme(root).dark);
    for (const about of CHARTS) {
      const { x, y } = points(this.samples, about.value, start);
      if (!x.length) continue;
      const line = {
        key: 0,
        name: about.name,
        ...stroke,
        x: x.map((seconds) => seconds / size),
        mean: y,
        low: null,
        high: null,
        raw: null,
        theory: null,
      };
      this.chart(about).show(
        [line],
        {
          logX: false,
          logY: false,
          xLabel: `${unit} since the first start`,
          yLabel: about.label,
          integers: false,
          fromZero: true,
        },
        this.view,
      );
    }
  }

  /**
   * The chart of a figure, made when the figure is first known.
   * @param {About} about
   */
  chart(about) {
    const known = this.charts.get(about.name);
    if (known) return known;
    const label = `${about.label} over time. Arrow keys read values, plus and minus zoom, 0 resets the zoom.`;
    const plot = h("div", { class: "plot", tabindex: 0, role: "application", "aria-label": label });
    find(root, ".usage").append(plot);
    /** @type {(line: Line, at: number) => string} */
    const tellValue = (line, at) => `${digits(line.mean[at])} ${about.unit}`;
    const chart = new Chart(plot, { tell: tellValue, place: (x) => `${digits(x)} ${this.unit}` });
    plot.addEventListener("fedq:zoom", () => {
      this.view = chart.view && { x: chart.view.x, y: null };
      this.draw();
    });
    plot.addEventListener("fedq:place", ({ detail: { x, spoken } }) => {
      const [line] = chart.lines;
      if (spoken && line && x !== null)
        find(root, ".spoken").textContent =
          `${digits(x)} ${this.unit}: ${about.name} ${tellValue(line, nearest(line.x, x))}`;
    });
    this.charts.set(about.name, chart);
    return chart;
  }
}

class Log {
  constructor() {
    this.box = find(root, ".log");
    this.list = find(this.box, "ol");
    this.level = byId("log-level", HTMLSelectElement);
    this.download = find(root, "[data-download]", HTMLAnchorElement);
    this.level.addEventListener("change", () => {
      for (const item of this.list.querySelectorAll("li"))
        item.hidden = !this.wanted(item.dataset.level ?? "");
      this.download.href = `${path}/logs.txt?level=${this.level.value}`;
      this.box.scrollTop = this.box.scrollHeight;
    });
  }

  /** @param {string} level */
  wanted(level) {
    return LEVELS.indexOf(level) >= LEVELS.indexOf(this.level.value);
  }

  /**
   * Add lines; the last one is shown if the last one before was.
   * @param {LogLine[]} lines
   */
  add(lines) {
    const { box, list } = this;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
    list.append(...lines.map((line) => this.item(line)));
    while (list.children.length > MOST_LINES) list.firstElementChild?.remove();
    const isEmpty = !list.children.length;
    find(root, "[data-no-lines]").hidden = !isEmpty;
    box.hidden = isEmpty;
    if (lines.length && isAtEnd) box.scrollTop = box.scrollHeight;
  }

  /** @param {LogLine} line */
  item({ time, level, worker, event, fields }) {
    const { exception, logger, ...rest } = fields;
    const facts = Object.entries({ ...rest, worker })
      .map(([name, value]) => `${name}=${value}`)
      .join(" ");
    return h(
      "li",
      { "data-level": level, hidden: !this.wanted(level), title: logger },
      h("time", { datetime: time }, `${time.slice(0, 19).replace("T", " ")} UTC`),
      h("span", { class: "level" }, level),
      h("span", { class: "event" }, event, " ", h("span", { class: "facts" }, facts)),
      exception ? h("pre", {}, String(exception)) : "",
    );
  }
}

const [usage, log] = [new Usage(), new Log()];
const after = { logs: 0, resources: 0 };
let [failed, loading] = [false, false];
/** @type {ReturnType<typeof setTimeout>} */
let timer;

/** Show the status and progress that the run has now. */
async function refresh() {
  const page = new DOMParser().parseFromString(await call("GET", location.pathname), "text/html");
  find(document, "[data-facts]").replaceWith(page.querySelector("[data-facts]") ?? "");
  const [now, before] = [page, document].map((one) => find(one, "[data-measured]"));
  if (roundOf(now) === roundOf(before)) return;
  before.replaceWith(now);
  drawMeasured();
}

/**
 * The round of the lists that are shown; undefined without any.
 * @param {HTMLElement} measured
 */
function roundOf(measured) {
  return measured.querySelector("section")?.dataset.round;
}

function drawMeasured() {
  const section = document.querySelector("section[data-lists]");
  if (section instanceof HTMLElement) drawLists(section);
}

/** Load what is new; returns the status of the run. */
async function load() {
  /** @type {[LogPage, ResourcePage]} */
  const [lines, samples] = await Promise.all([
    call("GET", `${path}/logs?cursor=${after.logs}`),
    call("GET", `${path}/resources?cursor=${after.resources}`),
  ]);
  log.add(lines.items);
  if (samples.items.length) await prepare();
  usage.add(samples.items);
  [after.logs, after.resources] = [lines.next, samples.next];
  // The two may have been read before and after the end of the run.
  const { status } = ENDED.has(lines.status) ? samples : lines;
  if (status !== root.dataset.status || (status === "running" && samples.items.length)) await refresh();
  root.dataset.status = status;
  failed = false;
  return status;
}

async function follow() {
  clearTimeout(timer);
  if (document.hidden || loading) return;
  loading = true;
  let status = "";
  try {
    status = await load();
  } catch (error) {
    if (error instanceof Problem && error.status === 404) {
      showDeleted(find(document, "[data-facts] .badge"));
      status = root.dataset.status = "deleted";
    } else if (!failed) tell(wordsOf(error), "error");
    failed = true;
  } finally {
    loading = false;
  }
  if (!ENDED.has(status)) timer = setTimeout(follow, status === "running" ? BUSY_MS : IDLE_MS);
}

drawMeasured();
document.addEventListener("visibilitychange", () => !ENDED.has(root.dataset.status ?? "") && follow());
follow();
