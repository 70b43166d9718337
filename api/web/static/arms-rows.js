// Rows of arms and of runs, from what `/arms/rows` answers, for the table of arms and for charts of settings.
import { isShare } from "./results-table.js";

const FIRST = 5; // Values of a run before those of its metrics.

/** Mean of values and half of its 95 % confidence interval; null of no values, and of one without interval. */
export function estimate(values, quantiles) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  if (known.length === 1) return { mean, half: null };
  const spread = Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1));
  const quantile = quantiles[Math.min(known.length - 1, quantiles.length) - 1];
  return { mean, half: (quantile * spread) / Math.sqrt(known.length) };
}

/** The columns of figures that any run has: where it has them, and what they are called. */
export function figuresOf({ metrics, arms }) {
  const named = metrics.flatMap(({ name, better }, place) => {
    const words = name.replaceAll("_", " ") + (isShare(name) ? " (%)" : "");
    const final = { field: `${name}.final`, title: `${words}, final`, metric: name, place: FIRST + 2 * place + 1 };
    return better ? [{ field: `${name}.best`, title: `${words}, best`, metric: name, place: FIRST + 2 * place }, final] : [final];
  });
  const all = [...named, { field: "megabytes_sent", title: "MB sent", metric: "", place: 3 }, { field: "seconds", title: "Seconds", metric: "", place: 4 }];
  return all.filter(({ place }) => arms.some((arm) => arm.seeds.some((seed) => seed[place] !== null)));
}

/** What all rows of an arm have: its settings, those of its experiment included, and its place. */
function place({ experiments }, arm) {
  const { name, settings } = experiments[arm.experiment];
  return { ...settings, ...arm.settings, key: `${arm.experiment}:${arm.arm}`, arm: arm.arm, experiment: name, id: arm.experiment, name: arm.name, figures: {} };
}

/** A row for each arm, with means over its seeds. */
export function armRows(data, figures) {
  return data.arms.map((arm) => {
    const row = { ...place(data, arm), status: arm.status, seeds: arm.seeds.length };
    for (const { field, place } of figures) {
      row.figures[field] = arm.seeds.map((seed) => seed[place]);
      const found = estimate(row.figures[field], data.quantiles);
      row[field] = found?.mean ?? null;
      row[`${field}±`] = found?.half ?? null;
    }
    return row;
  });
}

/** A row for each run. */
export function runRows(data, figures) {
  return data.arms.flatMap((arm) =>
    arm.seeds.map((seed) => {
      const row = { ...place(data, arm), run: seed[0], seeds: seed[1], status: seed[2] };
      for (const { field, place } of figures) {
        row[field] = seed[place];
        row.figures[field] = [seed[place]];
      }
      return row;
    }),
  );
}

/** Settings in which the arms differ, those of them that tell arms apart, and all but these. */
export function settingsOf(rows, { arms, experiments }) {
  const paths = new Set(Object.values(experiments).flatMap(({ settings }) => Object.keys(settings)));
  for (const { settings } of arms) for (const path of Object.keys(settings)) paths.add(path);
  const all = [...paths].sort();
  const varying = all.filter((path) => rows.some((row) => row[path] !== rows[0][path]));
  // An option that only some kinds have, with one value, says no more than the kind.
  const telling = varying.filter((path) => {
    const known = new Set(rows.map((row) => row[path]).filter((value) => value !== undefined));
    return known.size > 1 || typeof [...known][0] === "number";
  });
  return { telling, others: all.filter((path) => !telling.includes(path)), varying };
}
