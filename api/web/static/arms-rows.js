// Rows of arms and of runs, from the columns that `/arms/rows` answers, for the table of arms and for charts of settings. The service computes what is
// statistics, as for every other reader.
import { format, isShare } from "./results-table.js";
import { call } from "./service.js";

/** @import { ArmColumns, GroupMeans, Setting } from "../types/answers" */

/** @typedef {{ field: string, title: string, metric: string }} Figure column of a figure */

/**
 * Row of an arm, or of a run: below, each setting and figure has its field, too. Of an arm the deviation of a figure and the ends of its interval are
 * under `field±`, `field low` and `field high`.
 * @typedef {object} RowStart
 * @property {string} id of the experiment
 * @property {string} experiment its name
 * @property {number} arm
 * @property {string} name
 * @property {string} status
 * @property {number} seeds number of seeds of an arm, the seed of a run
 * @property {string} [run]
 * @property {number} first place of its first run among all runs
 * @property {number} end
 */
/** @typedef {RowStart & Record<string, Setting | undefined>} Row */

/**
 * Mean and deviation of figures over all runs of each group of arms.
 * @param {string[]} figures
 * @param {Pick<Row, "id" | "arm">[][]} groups
 * @returns {Promise<GroupMeans[]>}
 */
export function meansOf(figures, groups) {
  return call("POST", "/arms/means", { figures, groups: groups.map(byExperiment) });
}

/**
 * The numbers of arms by the id of their experiment; each once, if its runs are given.
 * @param {Pick<Row, "id" | "arm">[]} rows
 */
function byExperiment(rows) {
  /** @type {Record<string, Set<number>>} */
  const found = {};
  for (const { id, arm } of rows) (found[id] ??= new Set()).add(arm);
  return Object.fromEntries(Object.entries(found).map(([id, arms]) => [id, [...arms]]));
}

/**
 * A mean as tables and charts tell it, with the sample standard deviation over seeds.
 * @param {{ mean: number | null, std: number | null }} figure
 * @param {string} metric
 */
export function withDeviation({ mean, std }, metric) {
  return format(mean, metric) + (std === null ? "" : ` ± ${format(std, metric)}`);
}

/**
 * A figure of a row; null without.
 * @param {Row} row
 * @param {string} field
 */
export function figureOf(row, field) {
  const value = row[field];
  return typeof value === "number" ? value : null;
}

/**
 * How many of the runs `first` to `end` have each warning, in the words of the service; empty if none has.
 * @param {ArmColumns} data
 * @param {Pick<Row, "first" | "end">[]} spans
 */
export function warningOf({ runs, warnings }, spans) {
  const among = spans.flatMap(({ first, end }) => runs.warning.slice(first, end));
  const noun = among.length === 1 ? "run" : "runs";
  return Object.entries(warnings)
    .map(([kind, words]) => ({ count: among.filter((found) => found === kind).length, words }))
    .filter(({ count }) => count)
    .map(({ count, words }) => `${count} of ${among.length} ${noun} ${words[count > 1 ? 1 : 0]}`)
    .join("; ");
}

/**
 * The columns of figures that any run has, and what they are called.
 * @param {ArmColumns} data
 * @returns {Figure[]}
 */
export function figuresOf({ metrics, figures }) {
  const named = metrics.flatMap(({ name, better }) => {
    const words = name.replaceAll("_", " ") + (isShare(name) ? " (%)" : "");
    const final = { field: `${name}.final`, title: `${words}, final`, metric: name };
    return better ? [{ field: `${name}.best`, title: `${words}, best`, metric: name }, final] : [final];
  });
  const all = [
    ...named,
    { field: "megabytes_sent", title: "MB sent", metric: "" },
    { field: "seconds", title: "Seconds", metric: "" },
  ];
  return all.filter(({ field }) => field in figures);
}

/**
 * A row for each arm, with means over its runs; these are `first` to `end` of all runs. Settings that all arms share are those of a prototype: a row of a
 * large table has a few properties instead of a hundred.
 * @param {ArmColumns} data
 * @param {Figure[]} figures
 * @returns {Row[]}
 */
export function armRows(data, figures) {
  const begun = beginning(data);
  let end = 0;
  return data.arms.name.map((_, at) => {
    const [first, count] = [end, data.arms.runs[at]];
    end += count;
    const row = Object.assign(begun(at), { status: data.arms.status[at], seeds: count, first, end });
    for (const { field } of figures) {
      const { mean, std, low, high } = data.estimates[field];
      row[field] = mean[at];
      row[`${field}±`] = std[at];
      row[`${field} low`] = low[at];
      row[`${field} high`] = high[at];
    }
    return row;
  });
}

/**
 * A row for each run.
 * @param {ArmColumns} data
 * @param {Figure[]} figures
 * @returns {Row[]}
 */
export function runRows(data, figures) {
  const begun = beginning(data);
  const { id, seed, status } = data.runs;
  let end = 0;
  return data.arms.name.flatMap((_, at) => {
    const first = end;
    end += data.arms.runs[at];
    return id.slice(first, end).map((run, within) => {
      const place = first + within;
      const row = Object.assign(begun(at), {
        run,
        seeds: seed[place],
        status: status[place],
        first: place,
        end: place + 1,
      });
      for (const { field } of figures) row[field] = data.figures[field][place];
      return row;
    });
  });
}

/**
 * Makes of the number of an arm a row with what all its rows have: its settings and its place.
 * @param {ArmColumns} data
 */
function beginning({ arms, experiments, shared, settings }) {
  const [columns, origins] = [Object.entries(settings), Object.entries(experiments)];
  return (/** @type {number} */ at) => {
    /** @type {Record<string, Setting>} */
    const row = Object.create(shared);
    for (const [path, values] of columns) row[path] = values[at];
    const [id, experiment] = origins[arms.experiment[at]];
    return Object.assign(row, { id, experiment, arm: arms.arm[at], name: arms.name[at] });
  };
}

/**
 * The settings that do not tell arms apart, in order.
 * @param {ArmColumns} data
 */
export function otherSettings({ shared, settings, telling }) {
  return [...Object.keys(shared), ...Object.keys(settings)].filter((path) => !telling.includes(path)).sort();
}
