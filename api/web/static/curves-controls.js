// Controls of the curves: what they say, restored from the address of the page and kept in it.
import { find, h } from "./elements.js";
import { isShare } from "./results-table.js";
import { remember, viewed, viewedAll } from "./view.js";

/** @import { View } from "./chart.js" */
/** @import { Places } from "./closer.js" */

/** Figures of a metric; the others are costs of reaching a target. */
const MEASURED = new Set(["final", "best", "area"]);

/**
 * @typedef {object} Fields
 * @property {HTMLSelectElement} metric
 * @property {HTMLSelectElement} x
 * @property {HTMLSelectElement} band
 * @property {HTMLInputElement} smooth
 * @property {HTMLInputElement} logx
 * @property {HTMLInputElement} logy
 * @property {HTMLInputElement} best
 * @property {HTMLInputElement} theory
 * @property {HTMLInputElement} find
 * @property {HTMLInputElement} [target] of an experiment, not of a comparison
 * @property {HTMLSelectElement} figure
 * @property {HTMLSelectElement} baseline
 */

/** @type {Record<string, { list: Places, words: string }>} */
export const AXES = {
  round: { list: "rounds", words: "Round" },
  bytes: { list: "megabytes", words: "Megabytes sent" },
  time: { list: "simulated_seconds", words: "Simulated seconds" },
  epsilon: { list: "epsilon", words: "Epsilon" },
};
const LOGARITHMIC = new Set(["suboptimality", "distance"]);

/**
 * A metric in words.
 * @param {string} metric
 */
export const inWords = (metric) => metric.replaceAll("_", " ");

export class Controls {
  /** @type {View | null} */
  zoom = null;
  /** @type {string | null} the place of the baseline; null compares with the best of the others */
  baseline = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.form = find(root, "form", HTMLFormElement);
    this.fields = /** @type {Fields} */ (/** @type {unknown} */ (this.form.elements));
    /** @type {string[]} */
    this.metrics = JSON.parse(root.dataset.metrics ?? "[]");
    /** @type {Record<string, "min" | "max">} */
    this.better = JSON.parse(root.dataset.better ?? "{}");
    this.more = find(root, ".more");
    this.#restore();
  }

  /** Set the controls as the address says. */
  #restore() {
    const { fields, metrics } = this;
    const chosen = viewedAll("metric").filter((metric) => metrics.includes(metric));
    fields.metric.replaceChildren(
      ...metrics.map((metric) => h("option", { value: metric }, inWords(metric))),
    );
    if (chosen.length) fields.metric.value = chosen[0];
    this.more.replaceChildren(
      ...metrics.map((metric) => {
        const box = h("input", { type: "checkbox", name: "more", value: metric });
        box.checked = chosen.slice(1).includes(metric);
        return h("label", { class: "switch" }, box, inWords(metric));
      }),
    );
    const log = viewed("log");
    fields.logx.checked = log?.includes("x") ?? false;
    fields.logy.checked = log?.includes("y") ?? LOGARITHMIC.has(fields.metric.value);
    fields.best.checked = viewed("best") === "yes";
    fields.theory.checked = viewed("theory") === "yes";
    for (const field of [fields.x, fields.band, fields.figure]) {
      const value = viewed(field.name) ?? "";
      if ([...field.options].some((option) => option.value === value)) field.value = value;
    }
    fields.smooth.value = viewed("smooth") ?? "";
    fields.find.value = viewed("find") ?? "";
    if (fields.target) fields.target.value = viewed("target") ?? "";
    const baseline = viewed("baseline") ?? "";
    this.baseline = /^\d{1,6}$/.test(baseline) ? baseline : null;
    this.zoom = zoomOf(viewed("zoom") ?? "");
  }

  /** Put into the address what differs from a page that has just been opened. */
  remember() {
    const { fields, zoom } = this;
    /** @type {(value: string | null, usual: string) => string | null} */
    const unless = (value, usual) => (value === usual ? null : value);
    const log = (fields.logx.checked ? "x" : "") + (fields.logy.checked ? "y" : "");
    const shown = this.shown();
    remember({
      metric: shown.length === 1 && shown[0] === this.metrics[0] ? null : shown,
      log: unless(log || "none", LOGARITHMIC.has(shown[0]) ? "y" : "none"),
      x: unless(fields.x.value, "round"),
      band: unless(fields.band.value, "std"),
      smooth: fields.smooth.value,
      best: fields.best.checked ? "yes" : null,
      theory: fields.theory.checked ? "yes" : null,
      find: fields.find.value.trim(),
      figure: unless(fields.figure.value, "final"),
      target: fields.target?.value,
      baseline: this.baseline,
      zoom: zoom && [...zoom.x, ...(zoom.y ?? [])].map((value) => Number(value.toPrecision(6))).join(","),
    });
  }

  /** Choose scale and target for another metric. */
  startMetric() {
    const { logy, metric, target } = this.fields;
    logy.checked = LOGARITHMIC.has(metric.value);
    if (target) target.value = "";
    this.zoom = null;
  }

  /** The metric of the table, whose curves are drawn first. */
  get metric() {
    return this.fields.metric.value;
  }

  /** What lies along the horizontal axis. */
  get axis() {
    return AXES[this.fields.x.value];
  }

  /** The figure that the table compares arms by. */
  get figure() {
    return this.fields.figure.value;
  }

  /** The metrics that are drawn, first the one of the table. */
  shown() {
    const first = this.metric;
    const more = [...this.more.querySelectorAll("input")];
    for (const box of more) box.disabled = box.value === first;
    return [first, ...more.filter((box) => box.checked && box.value !== first).map((box) => box.value)];
  }

  /** Compare by the rounds to a target that is new. */
  startTarget() {
    const { target, figure } = this.fields;
    if (!target?.value || !MEASURED.has(figure.value)) return;
    for (const option of figure.options) option.disabled = false;
    figure.value = "rounds";
  }

  /** What runs are to reach, in the units of the metric; null of none, and of a metric without better and worse. */
  target() {
    const { target, figure } = this.fields;
    if (!target) return null;
    const known = this.metric in this.better;
    target.disabled = !known;
    for (const label of target.labels ?? [])
      label.textContent = isShare(this.metric) ? "Target, %" : "Target";
    const value =
      known && target.value !== "" ? Number(target.value) / (isShare(this.metric) ? 100 : 1) : null;
    for (const option of figure.options) option.disabled = value === null && !MEASURED.has(option.value);
    if (figure.selectedOptions[0]?.disabled) figure.value = "final";
    return value;
  }

  /**
   * Offer the best of the other arms, and each arm, to compare with.
   * @param {string[]} names
   */
  offerBaselines(names) {
    const { baseline } = this.fields;
    if (baseline.length !== names.length + 1)
      baseline.replaceChildren(
        h("option", { value: "" }, "best other"),
        ...names.map((name, at) => h("option", { value: at }, name)),
      );
    baseline.value = this.baseline ?? "";
  }

  /** The words that the names of arms must have. */
  get sought() {
    return this.fields.find.value.toLowerCase().split(/\s+/);
  }
}

/**
 * What `zoom` in the address says; null where it makes no sense.
 * @param {string} written
 * @returns {View | null}
 */
function zoomOf(written) {
  const ends = written.split(",").map(Number);
  const [left, right, bottom, top] = ends;
  if (![2, 4].includes(ends.length) || !ends.every(Number.isFinite) || left >= right || bottom >= top)
    return null;
  return { x: [left, right], y: ends.length === 4 ? [bottom, top] : null };
}
