// Importance of settings: how much of the differences between arms each of them explains.

import { figureOf } from "./arms-rows.js";

/** @import { Setting } from "../types/answers" */
/** @import { Row } from "./arms-rows.js" */

const MOST_LEVELS = 8;

/**
 * Share of the variance of `figure` over `rows` that each setting of `paths` explains alone, most important first: omega squared of an analysis of variance
 * with main effects, about 0 for a setting without influence. What the settings do not explain together is the error; where they have as many values as
 * there are arms, what one of them does not explain. Numbers with more than 8 values are taken in as many groups of neighbours. `share` is null where it
 * cannot be told apart from chance.
 * @param {Row[]} rows
 * @param {string[]} paths
 * @param {string} figure
 */
export function importance(rows, paths, figure) {
  const known = rows.filter((row) => figureOf(row, figure) !== null);
  const figures = known.map((row) => figureOf(row, figure) ?? 0);
  // Of numbers about 1: the squares of large ones would be infinite.
  const size = Math.max(...figures.map(Math.abs)) || 1;
  const values = figures.map((value) => value / size);
  const total = squares(values);
  const effects = paths.map((path) => ({ path, ...between(levelled(known, path), values) }));
  /** @param {"squares" | "freedom"} name */
  const sum = (name) => effects.reduce((all, effect) => all + effect[name], 0);
  const left = { squares: total - sum("squares"), freedom: known.length - 1 - sum("freedom") };
  /** @param {{ squares: number, freedom: number }} effect */
  const share = (effect) => {
    const error =
      left.freedom > 0 && left.squares > -1e-9 * total
        ? left
        : { squares: total - effect.squares, freedom: known.length - 1 - effect.freedom };
    if (effect.freedom < 1 || error.freedom < 1 || total === 0) return null;
    const noise = Math.max(error.squares, 0) / error.freedom;
    return Math.max(0, (effect.squares - effect.freedom * noise) / (total + noise));
  };
  return effects
    .map((effect) => ({ path: effect.path, share: share(effect) }))
    .sort((one, other) => (other.share ?? -1) - (one.share ?? -1));
}

/**
 * The level of a setting in each row: its value, or the number of a group of neighbouring values.
 * @param {Row[]} rows
 * @param {string} path
 */
function levelled(rows, path) {
  const values = rows.map((row) => row[path] ?? null);
  const distinct = [...new Set(values)].filter((value) => typeof value === "number");
  if (distinct.length <= MOST_LEVELS || distinct.length < new Set(values).size) return values;
  distinct.sort((one, other) => one - other);
  const group = new Map(
    distinct.map((value, at) => [value, Math.floor((at * MOST_LEVELS) / distinct.length)]),
  );
  return values.map((value) => group.get(Number(value)) ?? null);
}

/**
 * Sum of squares and degrees of freedom between the levels.
 * @param {Setting[]} levels
 * @param {number[]} values
 */
function between(levels, values) {
  const groups = new Map(levels.map((level) => [level, /** @type {number[]} */ ([])]));
  values.forEach((value, at) => groups.get(levels[at])?.push(value));
  const within = [...groups.values()].reduce((sum, group) => sum + squares(group), 0);
  return { squares: squares(values) - within, freedom: groups.size - 1 };
}

/**
 * Sum of squared distances from the mean.
 * @param {number[]} values
 */
function squares(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
}
