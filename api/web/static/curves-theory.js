// What theory says of the arms of an experiment: lines beside the curves, and their formulas.
import { placesOf } from "./curves-lines.js";
import { h } from "./elements.js";

/** @import { ArmResult, Curve, Law, Theory } from "../types/answers" */
/** @import { Line } from "./chart.js" */
/** @import { Places } from "./closer.js" */

/**
 * What theory says of an arm, over the same axis and no further than it has come; null where it says nothing of the metric.
 * @param {Theory} theory
 * @param {ArmResult} arm
 * @param {Curve} curve
 * @param {Places} list
 * @param {string} metric
 * @returns {Line["theory"]}
 */
export function lawOf(theory, arm, curve, list, metric) {
  const law = theory.arms.find(({ index }) => index === arm.index)?.law;
  const values = law?.curves[metric];
  if (!law || !values) return null;
  const [first, last] = [curve.rounds[0], curve.rounds[curve.rounds.length - 1]];
  const inside = law.rounds
    .map((_, at) => at)
    .filter((at) => law.rounds[at] >= first && law.rounds[at] <= last);
  return {
    x: inside.map((at) => across(curve.rounds, placesOf(curve, list), law.rounds[at])),
    y: inside.map((at) => values[at]),
  };
}

/**
 * Where a round lies on an axis, between rounds whose places are known.
 * @param {number[]} rounds
 * @param {number[]} places
 * @param {number} round
 */
function across(rounds, places, round) {
  const at = rounds.findIndex((known) => known >= round);
  if (at <= 0 || rounds[at] === round) return places[Math.max(at, 0)];
  const share = (round - rounds[at - 1]) / (rounds[at] - rounds[at - 1]);
  return places[at - 1] + share * (places[at] - places[at - 1]);
}

/**
 * Formulas and sources, each once, and what stands in the way where there is none.
 * @param {Theory} theory
 */
export function formulas({ arms }) {
  /** @type {Map<string | null, { law: Law | null, reason: string | null, names: string[] }>} */
  const said = new Map();
  for (const { name, law, reason } of arms) {
    const key = law ? `${law.formula}\n${law.source}` : reason;
    said.set(key, { law, reason, names: [...(said.get(key)?.names ?? []), name] });
  }
  return [...said.values()].map(({ law, reason, names }) => {
    const whom =
      names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");
    if (law) return h("li", {}, `${whom}: `, h("code", {}, law.formula), `, ${law.source}`);
    return h(
      "li",
      {},
      `${whom}: `,
      reason?.startsWith("no closed form") ? reason : `no closed form: ${reason}`,
    );
  });
}
