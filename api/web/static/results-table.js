// The results table as papers print it: mean ± deviation, the best in bold, what may be concluded of differences.
import { exponential } from "./axes.js";
import { h } from "./elements.js";

/** @import { AnyResults, ArmBesideOthers, ArmResult, BestArms, Estimate } from "../types/answers" */
/** @typedef {"best" | "final" | "area"} MetricFigure */

/** @type {Record<string, string>} marks of verdicts that are conclusions */
const MARKS = { best: "▲", better: "▲" };
/** @type {Record<MetricFigure, string>} */
const FIGURES = { best: "Best", final: "Final", area: "Mean over rounds" };
/** @type {Record<string, string>} what arms are compared by */
const COMPARED = {
  ...FIGURES,
  rounds: "Rounds to target",
  megabytes: "MB to target",
  simulated_seconds: "Simulated s to target",
};
/** @type {MetricFigure[]} */
const NAMES = ["best", "final", "area"];
export const ABSENT = "–";

/**
 * Shares are printed in percent.
 * @param {string} metric
 */
export const isShare = (metric) =>
  metric.endsWith("accuracy") ||
  metric.endsWith("decile") ||
  metric === "client_accuracy_std" ||
  metric.startsWith("personal_");

/**
 * A value of a metric as people read it.
 * @param {number | null | undefined} value
 */
export function format(value, metric = "") {
  if (value === null || value === undefined) return ABSENT;
  const size = Math.abs(value);
  if (isShare(metric)) return size < 1e5 ? (100 * value).toFixed(2) : exponential(value, 2, 2);
  if (value !== 0 && (size < 1e-3 || size >= 1e5)) return exponential(value, 2);
  return value.toFixed(4);
}

/** @type {(value: number, metric: string) => string} */
const signed = (value, metric) => (value > 0 ? "+" : "") + format(value, metric);
/** @type {(estimate: Estimate | null | undefined, metric: string) => string} */
const spread = (estimate, metric) =>
  !estimate
    ? ABSENT
    : format(estimate.mean, metric) + (estimate.std === null ? "" : ` ± ${format(estimate.std, metric)}`);

/**
 * Of megabytes or seconds: the mean, as a number with separators, or with two digits where it is small.
 * @param {Estimate | null | undefined} estimate
 */
function amount(estimate) {
  if (!estimate) return ABSENT;
  const options = estimate.mean < 1 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: 1 };
  return estimate.mean.toLocaleString("en", options);
}

/**
 * Of the figures that `read` finds of competing arms, the best; undefined where the metric has no better and worse.
 * @param {ArmResult[]} arms
 * @param {string | undefined} direction
 * @param {(arm: ArmResult) => number | null | undefined} read
 */
function best(arms, direction, read) {
  const competing = arms.filter((arm) => !arm.reference);
  const known = competing.map(read).filter((value) => value !== null && value !== undefined);
  if (!known.length || !direction) return undefined;
  return direction === "max" ? Math.max(...known) : Math.min(...known);
}

/**
 * The comparison of the arms in this metric; null where the service has made none.
 * @param {AnyResults} results
 * @param {string} metric
 */
export const comparisonOf = ({ best_arms: found }, metric) => (found?.metric === metric ? found : null);

/**
 * Difference and verdict of an arm beside the best of the others, or beside the baseline.
 * @param {ArmBesideOthers} one
 * @param {BestArms} compared
 */
function besideCells(one, compared) {
  const { difference, low, high, verdict } = one;
  /** @param {number} value */
  const words = (value) => {
    if (value === 0) return "0";
    return compared.by in FIGURES ? signed(value, compared.metric) : (value > 0 ? "+" : "") + rounds(value);
  };
  const range = typeof low === "number" && typeof high === "number" ? ` [${words(low)}, ${words(high)}]` : "";
  const worse = verdict === "worse" && typeof compared.baseline === "number" ? "▼" : undefined;
  const mark = worse ?? MARKS[verdict ?? ""];
  return [
    h("td", { class: "number" }, typeof difference === "number" ? words(difference) + range : ABSENT),
    h(
      "td",
      { class: mark ? "verdict" : "verdict muted", "data-verdict": mark ? verdict : null },
      mark ? h("span", { "aria-hidden": "true" }, `${mark} `) : null,
      one.words,
    ),
  ];
}

/** @param {number} value */
const rounds = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });

/** @param {ArmResult} arm */
function targetCells({ to_target: found }) {
  const missed = found && found.reached < found.runs ? ` (${found.reached} of ${found.runs})` : "";
  const bound = found?.rounds && found.reached < found.rounds.n ? "≥ " : "";
  const words = found?.rounds
    ? rounds(found.rounds.mean) + (found.rounds.std === null ? "" : ` ± ${rounds(found.rounds.std)}`)
    : ABSENT;
  return [
    h("td", { class: "number" }, bound + words + missed),
    h("td", { class: "number" }, bound + amount(found?.megabytes)),
  ];
}

/**
 * @param {ArmResult} arm
 * @param {MetricFigure} figure
 * @param {string} metric
 * @param {number | undefined} least
 */
function figureCell(arm, figure, metric, least) {
  const estimate = arm.metrics[metric]?.[figure];
  const text = spread(estimate, metric);
  const leads = estimate && !arm.reference && estimate.mean === least;
  return h("td", { class: "number" }, leads ? h("strong", { title: "best" }, text) : text);
}

/** @param {ArmResult} arm */
function remark(arm) {
  const total = Object.values(arm.runs).reduce((sum, count) => sum + count, 0);
  const parts = Object.entries(arm.runs)
    .filter(([status]) => status !== "succeeded")
    .map(([status, count]) => `${count} ${status}`);
  if (arm.warning) parts.push(arm.warning);
  if (arm.stopped) parts.push(`${arm.stopped} of ${total} stopped early`);
  return parts.join("; ");
}

/**
 * @param {AnyResults} results
 * @param {number} at place of the arm
 * @param {string} metric
 * @param {Record<MetricFigure, number | undefined>} leads
 * @param {BestArms | null} compared
 */
function row(results, at, metric, leads, compared) {
  const timed = results.arms.some((one) => one.simulated_seconds !== null);
  const arm = /** @type {ArmResult} */ (results.arms[at]);
  const one = compared?.beside[at];
  const cells = [
    ...NAMES.map((name) => figureCell(arm, name, metric, leads[name])),
    ...(results.target ? targetCells(arm) : []),
    ...(compared && one ? besideCells(one, compared) : []),
    h("td", { class: "number" }, amount(arm.megabytes_sent)),
  ];
  if (timed) cells.push(h("td", { class: "number" }, amount(arm.simulated_seconds)));
  cells.push(
    h("td", { class: "number" }, String(arm.seeds.length)),
    h("td", { class: "muted" }, remark(arm)),
  );
  const baseline = at === compared?.baseline ? h("span", { class: "muted" }, " (baseline)") : null;
  return h("tr", {}, h("th", { scope: "row" }, arm.name, baseline), ...cells);
}

/**
 * Fill `table` with the arms of `results` in one metric; `direction` is `max`, `min` or undefined.
 * @param {HTMLTableElement} table
 * @param {AnyResults} results
 * @param {string} metric
 * @param {string | undefined} direction
 * @param {BestArms | null} compared
 */
export function fillTable(table, results, metric, direction, compared) {
  const unit = isShare(metric) ? ", %" : "";
  const timed = results.arms.some((arm) => arm.simulated_seconds !== null);
  const toTarget = results.target ? ["Rounds to target", "MB to target"] : [];
  const heads = [
    "Arm",
    ...Object.values(FIGURES).map((words) => words + unit),
    ...toTarget,
    ...(compared
      ? [
          `${COMPARED[compared.by]} − ${typeof compared.baseline === "number" ? "baseline" : "best other"} [${100 * results.confidence} % CI]`,
          "Verdict",
        ]
      : []),
    "MB sent",
    ...(timed ? ["Simulated s"] : []),
    "Seeds",
    "",
  ];
  /** @param {MetricFigure} name */
  const lead = (name) => best(results.arms, direction, (arm) => arm.metrics[metric]?.[name]?.mean);
  const leads = { best: lead("best"), final: lead("final"), area: lead("area") };
  /** @param {number} at */
  const numeric = (at) => at > 0 && heads[at] !== "Verdict" && heads[at] !== "";
  table.replaceChildren(
    h(
      "caption",
      { class: "visually-hidden" },
      `${metric.replaceAll("_", " ")}: mean and standard deviation over the seeds of each arm`,
    ),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...heads.map((head, at) =>
          h(
            "th",
            { scope: "col", class: numeric(at) ? "number" : null },
            head || h("span", { class: "visually-hidden" }, "Notes"),
          ),
        ),
      ),
    ),
    h("tbody", {}, ...results.arms.map((_, at) => row(results, at, metric, leads, compared))),
  );
}

/**
 * What the table shows.
 * @param {AnyResults} results
 * @param {BestArms | null} compared
 */
export function explanation(results, compared) {
  const data = results.data_sources?.length ? ` Data: ${results.data_sources.join(", ")}.` : "";
  const isPrivate = [results, ...results.arms].some((known) => "privacy.kind" in (known.parameters ?? {}));
  const uncovered = isPrivate ? " Measured without noise: not covered by epsilon." : "";
  const best = results.arms.length > 1 ? "; the best in bold" : "";
  const others =
    typeof compared?.baseline === "number"
      ? " Each arm is beside the baseline"
      : " Each arm is beside the best of the others, and “worse” is worse than some other arm";
  const intervals = compared
    ? `${others}; the intervals hold for all arms together, and one with 0 as its end is decided.`
    : "";
  const pairing = results.pairing && compared ? ` ${results.pairing}` : "";
  const selection = results.selection ? ` ${results.selection}` : "";
  return `Mean ± sample standard deviation over seeds${best}.${intervals}${pairing}${selection}${uncovered}${data}`;
}
