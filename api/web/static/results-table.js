// The results table as papers print it: mean ± deviation, the best in bold, what may be concluded of differences.
import { exponential } from "./axes.js";
import { h } from "./elements.js";

/** @import { AnyResults, ArmBesideBest, ArmResult, BestArms, Difference, Estimate } from "../types/answers" */
/** @typedef {"best" | "final" | "area"} MetricFigure */
/** @typedef {MetricFigure | "target"} FigureName what arms are compared by */

/** @type {Record<string, [string, string]>} */
const VERDICTS = {
  better: ["▲", "better"],
  worse: ["▼", "worse"],
  different: ["◆", "different"],
  unclear: ["", "unclear"],
  too_few_seeds: ["", "too few seeds"],
  same_for_all: ["", "same for every seed"],
  incomplete: ["", "incomplete"],
};
/** @type {Record<string, [string, string]>} */
const BESIDE_BEST = {
  best: ["▲", "best"],
  among_best: ["", "may be best"],
  worse: ["", "worse"],
  too_few_seeds: ["", "too few seeds"],
  not_compared: ["", "not compared"],
  diverged: ["", "diverged"],
};
/** @type {Record<MetricFigure, string>} */
const FIGURES = { best: "Best", final: "Final", area: "Mean over rounds" };
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
 * Of the figures that `read` finds, the best; undefined where the metric has no better and worse.
 * @param {ArmResult[]} arms
 * @param {string | undefined} direction
 * @param {(arm: ArmResult) => number | null | undefined} read
 */
function best(arms, direction, read) {
  const known = arms.map(read).filter((value) => value !== null && value !== undefined);
  if (!known.length || !direction) return undefined;
  return direction === "max" ? Math.max(...known) : Math.min(...known);
}

/**
 * What an arm has beside the baseline: of a figure of the metric, or of the rounds to the target, which are no values of it.
 * @param {ArmResult} arm
 * @param {FigureName} figure
 * @param {string} metric
 * @returns {Difference | null | undefined}
 */
function differenceOf(arm, figure, metric) {
  return figure === "target"
    ? arm.to_target?.rounds_difference
    : arm.metrics[metric]?.[`${figure}_difference`];
}

/**
 * The arms beside the best of the others; null where the service has not compared them in this figure.
 * @param {AnyResults} results
 * @param {string} metric
 * @param {FigureName} figure
 */
export function bestOthers({ best_arms: found }, metric, figure) {
  return found && found.metric === metric && figure === "final" ? found : null;
}

/**
 * Difference and verdict of an arm beside the best of the others.
 * @param {ArmBesideBest} one
 * @param {string} metric
 */
function besideBestCells(one, metric) {
  const { difference, low, high } = one;
  const range =
    typeof low === "number" && typeof high === "number"
      ? ` [${low ? signed(low, metric) : 0}, ${high ? signed(high, metric) : 0}]`
      : "";
  const [mark, words] = BESIDE_BEST[one.verdict] ?? ["", one.verdict];
  const seeds = one.verdict === "diverged" ? ` in ${one.diverged} of ${one.seeds} seeds` : "";
  return [
    h(
      "td",
      { class: "number" },
      typeof difference === "number" ? signed(difference, metric) + range : ABSENT,
    ),
    h(
      "td",
      { class: mark ? "verdict" : "verdict muted", "data-verdict": mark ? one.verdict : null },
      mark ? h("span", { "aria-hidden": "true" }, `${mark} `) : null,
      words + seeds,
    ),
  ];
}

/** @param {number} value */
const rounds = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

/** @param {ArmResult} arm */
function targetCells({ to_target: found }) {
  const missed = found && found.reached < found.runs ? ` (${found.reached} of ${found.runs})` : "";
  const words = found?.rounds
    ? rounds(found.rounds.mean) + (found.rounds.std === null ? "" : ` ± ${rounds(found.rounds.std)}`)
    : ABSENT;
  return [
    h("td", { class: "number" }, words + missed),
    h("td", { class: "number" }, amount(found?.megabytes)),
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
  const leads = estimate && estimate.mean === least;
  return h("td", { class: "number" }, leads ? h("strong", { title: "best" }, text) : text);
}

/**
 * @param {ArmResult} arm
 * @param {FigureName} figure
 * @param {string} metric
 */
function differenceCell(arm, figure, metric) {
  const difference = differenceOf(arm, figure, metric);
  if (!difference) return h("td", { class: "number muted" }, ABSENT);
  const words = (/** @type {number} */ value) =>
    figure === "target" ? (value > 0 ? "+" : "") + rounds(value) : signed(value, metric);
  const { low, high } = difference;
  const range = low === null || high === null ? "" : ` [${words(low)}, ${words(high)}]`;
  return h("td", { class: "number" }, words(difference.mean) + range);
}

/**
 * @param {ArmResult} arm
 * @param {FigureName} figure
 * @param {string} metric
 */
function verdictCell(arm, figure, metric) {
  const difference = differenceOf(arm, figure, metric);
  if (!difference) return h("td", { class: "muted" }, ABSENT);
  const [mark, words] = VERDICTS[difference.verdict] ?? ["", difference.verdict];
  // A p-value of what may be a chosen part says nothing.
  const p =
    difference.p_adjusted === null || difference.verdict === "incomplete"
      ? ""
      : ` (p ${Number(difference.p_adjusted.toPrecision(2))})`;
  return h(
    "td",
    { class: mark ? "verdict" : "verdict muted", "data-verdict": difference.verdict },
    mark ? h("span", { "aria-hidden": "true" }, `${mark} `) : null,
    words + p,
  );
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
 * @param {ArmResult} arm
 * @param {FigureName} figure
 * @param {string} metric
 * @param {Record<MetricFigure, number | undefined>} leads
 * @param {ArmBesideBest | undefined} beside
 */
function row(results, arm, figure, metric, leads, beside) {
  const timed = results.arms.some((one) => one.simulated_seconds !== null);
  const cells = [
    ...NAMES.map((name) => figureCell(arm, name, metric, leads[name])),
    ...(results.target ? targetCells(arm) : []),
    ...(beside
      ? besideBestCells(beside, metric)
      : [differenceCell(arm, figure, metric), verdictCell(arm, figure, metric)]),
    h("td", { class: "number" }, amount(arm.megabytes_sent)),
  ];
  if (timed) cells.push(h("td", { class: "number" }, amount(arm.simulated_seconds)));
  cells.push(
    h("td", { class: "number" }, String(arm.seeds.length)),
    h("td", { class: "muted" }, remark(arm)),
  );
  const baseline = !beside && results.arms.length > 1 && arm === results.arms[results.baseline];
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, arm.name, baseline ? h("span", { class: "muted" }, " (baseline)") : null),
    ...cells,
  );
}

/**
 * Fill `table` with the arms of `results` in one metric; differences are of `figure`; `direction` is `max`, `min` or undefined.
 * @param {HTMLTableElement} table
 * @param {AnyResults} results
 * @param {string} metric
 * @param {FigureName} figure
 * @param {string | undefined} direction
 * @param {BestArms | null} beside
 */
export function fillTable(table, results, metric, figure, direction, beside) {
  const unit = isShare(metric) ? ", %" : "";
  const timed = results.arms.some((arm) => arm.simulated_seconds !== null);
  const toTarget = results.target ? ["Rounds to target", "MB to target"] : [];
  const heads = [
    "Arm",
    ...Object.values(FIGURES).map((words) => words + unit),
    ...toTarget,
    `${figure === "target" ? "Rounds to target" : FIGURES[figure]} − ${beside ? "best other" : "baseline"} [${100 * results.confidence} % CI]`,
    "Verdict",
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
    h(
      "tbody",
      {},
      ...results.arms.map((arm, at) => row(results, arm, figure, metric, leads, beside?.beside[at])),
    ),
  );
}

/**
 * What the marks of the table mean, which is filled with a figure of a metric.
 * @param {AnyResults} results
 * @param {string} metric
 * @param {FigureName} figure
 * @param {BestArms | null} beside
 */
export function explanation(results, metric, figure, beside) {
  const tested = results.arms.filter(
    (arm) => (differenceOf(arm, figure, metric)?.p_adjusted ?? null) !== null,
  ).length;
  const data = results.data_sources?.length ? ` Data: ${results.data_sources.join(", ")}.` : "";
  const isPrivate = [results, ...results.arms].some((known) => "privacy.kind" in (known.parameters ?? {}));
  const uncovered = isPrivate ? " Measured without noise: not covered by epsilon." : "";
  if (results.arms.length < 2) return `Mean ± sample standard deviation over seeds.${uncovered}${data}`;
  const verdicts = tested
    ? ` ▲ better and ▼ worse than the baseline: the p-value of the t-test, corrected by Holm for ${tested} ${tested > 1 ? "comparisons" : "comparison"}, is below ${results.level}.`
    : "";
  if (beside)
    return `Mean ± sample standard deviation over seeds; the best in bold. Each arm is beside the best of the others, in intervals that hold for all arms together; “worse” is worse than some other arm.${uncovered}${data}`;
  return `Mean ± sample standard deviation over seeds; the best in bold. ${results.pairing ?? "Differences are paired by seed."}${verdicts}${uncovered}${data}`;
}
