// Curves as lines: smoothed or best so far, with a band over seeds.
import { finite } from "./axes.js";
import { format } from "./results-table.js";

/** @import { Curve } from "../types/answers" */
/** @import { Line } from "./chart.js" */
/** @import { Places } from "./closer.js" */

/** @typedef {Line & { curve: Curve }} CurveLine */
/** @typedef {Pick<Line, "mean" | "low" | "high" | "raw">} Drawn */

/**
 * The ends of a band at each point: `side` is -1 of the lower and 1 of the upper one.
 * @type {Record<string, (curve: Curve, side: -1 | 1) => number[]>}
 */
const BANDS = {
  std: ({ mean, std }, side) => mean.map((value, at) => finite(value + side * (std[at] ?? 0))),
  ci: ({ mean, low, high }, side) => mean.map((value, at) => (side < 0 ? low : high)[at] ?? value),
};

/**
 * The best of the means up to each.
 * @param {Curve} curve
 * @param {"min" | "max"} better
 * @returns {Drawn}
 */
export function bestSoFar({ mean }, better) {
  let best = mean[0];
  return { mean: mean.map((value) => (best = Math[better](best, value))), low: null, high: null, raw: null };
}

/**
 * The lines of a curve, smoothed exponentially with a half-life in rounds; 0 smooths nothing.
 * @param {Curve} curve
 * @param {string} band
 * @param {number} halfLife
 * @returns {Drawn}
 */
export function smoothed(curve, band, halfLife) {
  const { mean, rounds } = curve;
  const edge = BANDS[band];
  /** @param {number[]} values */
  const smooth = (values) => (halfLife > 0 ? averages(rounds, values, halfLife) : values);
  return {
    mean: smooth(mean),
    raw: halfLife > 0 ? mean : null,
    low: edge ? smooth(edge(curve, -1)) : null,
    high: edge ? smooth(edge(curve, 1)) : null,
  };
}

/**
 * Averages of the values so far: each counts for the rounds since the one before, half as much after each half-life.
 * @param {number[]} rounds
 * @param {number[]} values
 * @param {number} halfLife
 */
function averages(rounds, values, halfLife) {
  let [sum, weight] = [0, 0];
  return values.map((value, at) => {
    const kept = 0.5 ** ((at ? rounds[at] - rounds[at - 1] : 1) / halfLife);
    sum = kept * sum + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    return finite(sum / weight);
  });
}

/**
 * True if each point of a curve has a known place on an axis.
 * @param {Curve} curve
 * @param {Places} list
 */
export function isKnown(curve, list) {
  return !(/** @type {(number | null)[]} */ (curve[list]).includes(null));
}

/**
 * The places of the points of a curve on an axis, where all are known.
 * @param {Curve} curve
 * @param {Places} list
 */
export function placesOf(curve, list) {
  return /** @type {number[]} */ (curve[list]);
}

/**
 * The value that is drawn and, where that is the mean itself, its deviation.
 * @param {CurveLine} line
 * @param {number} at
 * @param {string} metric
 */
export function reading({ curve, mean }, at, metric) {
  const value = format(mean[at], metric);
  return mean[at] !== curve.mean[at] || curve.std[at] === null
    ? value
    : `${value} ± ${format(curve.std[at], metric)}`;
}
