// What is said of the document: what is wrong with it, or what it would set in motion.
import { h, prose } from "./elements.js";
import { bytes, duration, number } from "./units.js";

/** @import { Plan, PlannedData, PrivacyPlan } from "../types/answers" */
/** @import { Flaw } from "./form.js" */

/**
 * A list of flaws, each of which leads to its place by `go`.
 * @param {Flaw[]} flaws
 * @param {(flaw: Flaw) => void} go
 */
export function flawList(flaws, go) {
  const items = flaws.map((flaw) => {
    const place = flaw.line ? `line ${flaw.line}` : flaw.pointer || "specification";
    const link = h(
      "a",
      {
        href: `#${flaw.pointer}`,
        onclick: (/** @type {Event} */ event) => (event.preventDefault(), go(flaw)),
      },
      place,
      flaw.pointer && flaw.line ? ` ${flaw.pointer}` : "",
    );
    return h("li", {}, link, h("div", {}, prose(flaw.detail)));
  });
  return h("ol", { class: "flaws" }, ...items);
}

/**
 * What a document would set in motion.
 * @param {Plan} plan
 */
export function planTable(plan) {
  const facts = [
    [
      "Runs",
      `${number(plan.runs)} = ${number(plan.arms.length)} ${plan.arms.length === 1 ? "arm" : "arms"} × ${number(plan.seeds.length)} ${plan.seeds.length === 1 ? "seed" : "seeds"}`,
    ],
    [
      "Rounds",
      number(plan.search ? plan.search.rounds : plan.rounds) +
        (plan.search ? ` (${Math.round(100 * plan.search.saving)} % fewer with the search)` : ""),
    ],
    ["Parameters", [...new Set(plan.arms.map((arm) => number(arm.parameters)))].slice(0, 4).join(", ")],
    ["Local steps", number(plan.local_steps)],
    ["Gradients", plan.gradients === plan.local_steps ? "" : number(plan.gradients)],
    ["Bytes sent up, down", `${bytes(plan.bytes_up)}, ${bytes(plan.bytes_down)}`],
    ["Counts", [...new Set(plan.arms.map((arm) => arm.exactness))].join("; ")],
    ["Memory per run", bytes(plan.memory_bytes)],
    ["Time", timeOf(plan)],
  ];
  const list = h(
    "dl",
    { class: "facts" },
    ...facts
      .filter(([, words]) => words)
      .flatMap(([name, words]) => [
        h("dt", {}, name[0].toUpperCase() + name.slice(1)),
        h("dd", { class: "number" }, words),
      ]),
  );
  const warnings = plan.warnings.map((text) =>
    h("p", { class: "notice warning" }, h("span", {}, prose(text))),
  );
  return [...warnings, list, arms(plan), ...plan.data.map(dataRead)];
}

/** @param {PlannedData} data */
function dataRead({ dataset, read }) {
  const rows = Object.entries(read).flatMap(([name, words]) => [
    h("dt", {}, name[0].toUpperCase() + name.slice(1)),
    h("dd", {}, words),
  ]);
  return h(
    "details",
    { open: true },
    h("summary", {}, `Data read: ${dataset}`),
    h("dl", { class: "facts" }, ...rows),
    h("p", { class: "muted" }, "Counts are training + test samples."),
  );
}

/** @param {Plan} plan */
function timeOf(plan) {
  const { seconds_low: low, seconds_high: high, seconds_source: source } = plan;
  if (typeof low !== "number" || typeof high !== "number") return `unknown: ${source}`;
  const count = Math.min(plan.workers, plan.runs);
  const elapsed =
    count > 1 ? `, ${duration(low / count)} to ${duration(high / count)} on ${plan.workers} workers` : "";
  return `${duration(low)} to ${duration(high)} on one worker${elapsed}, by ${source}`;
}

const SHOWN = 50;

/** @param {Plan} plan */
function arms(plan) {
  const head = ["Arm", "Steps", "Up", "Down"].map((name, index) =>
    h("th", { scope: "col", class: index ? "number" : "" }, name),
  );
  const rows = plan.arms.slice(0, SHOWN).map((arm) => {
    const cells = [number(arm.local_steps), bytes(arm.bytes_up), bytes(arm.bytes_down)];
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, arm.name),
      ...cells.map((cell) => h("td", { class: "number" }, cell)),
    );
  });
  const table = h(
    "table",
    { class: "grid" },
    h("caption", { class: "visually-hidden" }, "Arms, with estimates for one run of each"),
    h("thead", {}, h("tr", {}, ...head)),
    h("tbody", {}, ...rows),
  );
  const noisy = plan.arms
    .slice(0, SHOWN)
    .flatMap((arm) => (arm.privacy ? [h("li", {}, `${arm.name}: ${privacyOf(arm.privacy)}`)] : []));
  const privacy = noisy.length ? h("ul", { class: "muted" }, ...noisy) : "";
  const rest =
    plan.arms.length > SHOWN
      ? h("p", { class: "muted" }, `and ${number(plan.arms.length - SHOWN)} more`)
      : "";
  const title = `${plan.arms.length} ${plan.arms.length === 1 ? "arm" : "arms"}, per run`;
  return h(
    "details",
    { open: plan.arms.length <= 12 },
    h("summary", {}, title),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Arms" }, table),
    rest,
    privacy,
  );
}

/** @param {PrivacyPlan} privacy */
function privacyOf({ noise_multiplier: noise, epsilon, delta }) {
  return `noise multiplier ${noise}, ${epsilon === null ? "no privacy" : `epsilon ${epsilon.toPrecision(4)} for delta ${delta}`}`;
}
