// Curves that are looked at closely: which rounds were left out of what is drawn, and curves with these put in.

/** @import { Curve } from "../types/answers" */
/** @typedef {"rounds" | "megabytes" | "simulated_seconds" | "epsilon"} Places lists of a curve that a horizontal axis may show */
/** @typedef {[number, number]} Span */

/**
 * The first and last round between two places on an axis, and one drawn point further; null where no round was left out there.
 * @param {Curve[]} curves
 * @param {Places} list what lies along the axis, at a known place in each curve
 * @param {Span} span its two places
 * @returns {Span | null}
 */
export function leftOut(curves, list, [from, to]) {
  let first = Infinity;
  let last = 0;
  let some = false;
  for (const curve of curves) {
    const { rounds } = curve;
    const places = /** @type {number[]} */ (curve[list]);
    if (!rounds.length) continue;
    const start = Math.max(
      0,
      places.findLastIndex((place) => place <= from),
    );
    const beyond = places.findIndex((place) => place >= to);
    const end = beyond < 0 ? rounds.length - 1 : beyond;
    first = Math.min(first, rounds[start]);
    last = Math.max(last, rounds[end]);
    some ||= rounds[end] - rounds[start] > end - start;
  }
  return some ? [first, last] : null;
}

/**
 * The curve with its points from round `first` to `last` replaced by those of `finer`.
 * @param {Curve} curve
 * @param {Curve} finer
 * @param {Span} span
 * @returns {Curve}
 */
export function joined(curve, finer, [first, last]) {
  const before = curve.rounds.filter((round) => round < first).length;
  const after = curve.rounds.filter((round) => round <= last).length;
  const lists = /** @type {[keyof Curve, (number | null)[]][]} */ (Object.entries(curve));
  return /** @type {Curve} */ (
    Object.fromEntries(
      lists.map(([name, list]) => [name, [...list.slice(0, before), ...finer[name], ...list.slice(after)]]),
    )
  );
}
