// Rows of arms and of runs, from the columns that `/arms/rows` answers, for the table of arms and for charts of settings.
import { format, isShare } from "./results-table.js";

/** @import { ArmColumns, Setting } from "../types/answers" */

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
 * Mean and sample standard deviation over runs that were chosen on the page; null of no values, and of one no deviation. In units of the largest, as
 * `fedcore.statistics.summary.moments`: equal values then have no deviation by rounding, and no finite ones overflow.
 * @param {(number | null)[]} values
 */
export function moments(values) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return null;
  if (known.length === 1) return { mean: known[0], std: null };
  const scale = known.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const mean = known.reduce((sum, value) => sum + value / scale, 0) / known.length;
  const std =
    scale *
    Math.sqrt(known.reduce((sum, value) => sum + (value / scale - mean) ** 2, 0) / (known.length - 1));
  return { mean: mean * scale, std };
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
 * True of the options of a block, beside its kind.
 * @type {(path: string, kind: string) => boolean}
 */
const isOption = (path, kind) =>
  path !== kind && kind.endsWith(".kind") && path.startsWith(kind.slice(0, -"kind".length));

/**
 * True if arms of the same kind have the same value: an option then says no more than the kind.
 * @param {Setting[]} values
 * @param {Setting[]} kinds
 */
function follows(values, kinds) {
  const known = new Map(kinds.map((kind, at) => [kind, values[at]]));
  return values.every((value, at) => value === known.get(kinds[at]));
}

/**
 * Settings in which the arms differ, those of them that tell arms apart, and all but these.
 * @param {Pick<ArmColumns, "shared" | "settings">} data
 */
export function settingsOf({ shared, settings }) {
  const varying = Object.keys(settings).filter((path) =>
    settings[path].some((value) => value !== settings[path][0]),
  );
  const telling = varying.filter(
    (path) => !varying.some((kind) => isOption(path, kind) && follows(settings[path], settings[kind])),
  );
  const others = [...Object.keys(shared), ...Object.keys(settings)].filter((path) => !telling.includes(path));
  return { telling, others: others.sort(), varying };
}
