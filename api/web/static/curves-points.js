// The points of curves as a table.
import { inWords } from "./curves-controls.js";
import { h } from "./elements.js";
import { format } from "./results-table.js";

/** @import { ArmResult } from "../types/answers" */

const HEADS = ["Arm", "Metric", "Round", "Megabytes", "Simulated s", "Mean", "Std", "Seeds"];
/** Rounds of each curve. */
const MOST_ROUNDS = 12;
const MOST_ROWS = 1200;

/**
 * Fill `table` with some rounds of each curve.
 * @param {HTMLElement} table
 * @param {ArmResult[]} arms
 * @param {string[]} metrics
 */
export function fillPoints(table, arms, metrics) {
  const rows = metrics.flatMap((metric) => arms.flatMap((arm) => rowsOf(arm, metric)));
  const number = { class: "number" };
  table.replaceChildren(
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...HEADS.map((head, at) => h("th", { scope: "col", class: at > 1 ? "number" : null }, head)),
      ),
    ),
    h(
      "tbody",
      {},
      ...rows
        .slice(0, MOST_ROWS)
        .map(([name, ...values]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name),
            ...values.map((value, at) => h("td", at ? number : {}, value)),
          ),
        ),
    ),
  );
}

/**
 * @param {ArmResult} arm
 * @param {string} metric
 */
function rowsOf(arm, metric) {
  const curve = arm.curves[metric];
  if (!curve) return [];
  return sample(curve.rounds.length, MOST_ROUNDS).map((at) => [
    arm.name,
    inWords(metric),
    String(curve.rounds[at]),
    format(curve.megabytes[at]),
    format(curve.simulated_seconds[at]),
    format(curve.mean[at], metric),
    format(curve.std[at], metric),
    String(curve.n[at]),
  ]);
}

/**
 * At most `count` of `length` places, evenly spread, with both ends.
 * @param {number} length
 * @param {number} count
 */
function sample(length, count) {
  if (length <= count) return [...Array(length).keys()];
  return Array.from({ length: count }, (_, at) => Math.round((at * (length - 1)) / (count - 1)));
}
