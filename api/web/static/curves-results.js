// Results that are drawn as curves: asked for when a control says so, asked for again when something has changed, and in full where they are zoomed into.
import { prepare } from "./chart.js";
import { joined, leftOut } from "./closer.js";
import { isKnown } from "./curves-lines.js";
import { call, Problem, tell, wordsOf } from "./service.js";

/** @import { AnyResults, ArmResult, Curve } from "../types/answers" */
/** @import { Places, Span } from "./closer.js" */
/** @import { Controls } from "./curves-controls.js" */

export const ENDED = new Set(["succeeded", "failed", "cancelled", "paused"]);
const QUIET_S = 2;
/** Characters of a position in an address: that of thousands of runs that all stand elsewhere is longer than a request's head may be. */
const LONGEST_POSITION = 8000;
/** Zooming in several steps loads data once, after the last one. */
const SETTLING_MS = 150;

export class ResultsSource {
  /** @type {AnyResults | null} */
  results = null;
  /** @type {{ rounds: Span, curves: Record<string, Curve>[] } | null} curves with all points of what is zoomed into */
  #detail = null;
  /** @type {string | null} what is zoomed into */
  #looking = null;
  #asked = 0;
  /** @type {"hidden" | "answer" | "time" | null} what is waited for before results are asked for again */
  #waiting = null;
  #took_ms = 0;

  /**
   * @param {HTMLElement} root marked as busy while an answer is pending
   * @param {Controls} controls
   * @param {{ loaded: (results: AnyResults) => void, refined: () => void }} told of results, and of further points
   */
  constructor(root, controls, told) {
    this.root = root;
    this.controls = controls;
    this.told = told;
    document.addEventListener("fedq:moved", () => this.results && this.#renew());
    document.addEventListener("visibilitychange", () => {
      if (this.#waiting === "hidden") {
        this.#waiting = null;
        this.#renew();
      }
    });
  }

  /** Ask for what the controls say; an answer that has been overtaken is dropped. With `live`, for what has changed since. */
  async load(live = false) {
    const { controls, root } = this;
    const asked = ++this.#asked;
    const began = performance.now();
    root.setAttribute("aria-busy", "true");
    try {
      const address = this.#address();
      if (controls.baseline !== null) address.searchParams.set("baseline", controls.baseline);
      const target = controls.target();
      if (target !== null) address.searchParams.set("target", `${controls.metric}:${target}`);
      address.searchParams.set("by", controls.figure);
      controls.remember();
      const before = live ? this.#extensible() : null;
      if (before) address.searchParams.set("since", before.position);
      /** @type {[AnyResults, void]} */
      const [found] = await Promise.all([call("GET", address.pathname + address.search), prepare()]);
      if (asked !== this.#asked) return;
      this.results = before ? continued(before, found) : found;
      this.#took_ms = performance.now() - began;
      this.told.loaded(this.results);
      // No event reports changes of a comparison.
      if (found.members?.some(({ status }) => !ENDED.has(status))) this.#renew();
    } catch (error) {
      if (asked !== this.#asked) return;
      // The page of an experiment says that it is gone.
      const gone = new CustomEvent("fedq:gone", { cancelable: true });
      if (error instanceof Problem && error.status === 404 && !document.dispatchEvent(gone)) return;
      tell(wordsOf(error), "error");
    } finally {
      if (asked === this.#asked) root.removeAttribute("aria-busy");
      if (asked === this.#asked && this.#waiting === "answer") this.#later();
    }
  }

  /** Where results are asked for, of the metrics that are drawn. */
  #address() {
    const address = new URL(this.root.dataset.results ?? "", location.href);
    for (const metric of this.controls.shown()) address.searchParams.append("metric", metric);
    address.searchParams.set("points", String(this.#points));
    return address;
  }

  get #points() {
    return Math.round(Math.min(1000, Math.max(200, 40_000 / Number(this.root.dataset.arms))));
  }

  /** The results behind which what has changed can be put: those with a position, and not yet twice as many points as asked for. */
  #extensible() {
    const { results } = this;
    const length = results?.position.length ?? 0;
    if (!results || length === 0 || length >= LONGEST_POSITION) return null;
    const curves = results.arms.flatMap((arm) => Object.values(arm.curves));
    return curves.every(({ rounds }) => rounds.length < 2 * this.#points) ? results : null;
  }

  /** Reload after a change: not too often, not while a response is pending, and not while the page is hidden. */
  #renew() {
    if (this.#waiting !== null) return;
    if (document.hidden) this.#waiting = "hidden";
    else if (this.root.hasAttribute("aria-busy")) this.#waiting = "answer";
    else this.#later();
  }

  #later() {
    this.#waiting = "time";
    setTimeout(
      () => {
        this.#waiting = null;
        if (this.root.hasAttribute("aria-busy")) this.#renew();
        else this.load(true);
      },
      Math.max(1000 * QUIET_S, 10 * this.#took_ms),
    );
  }

  /**
   * Ask for the rounds that are zoomed into, where some of them were left out; they are drawn once they are there.
   * @param {(arm: ArmResult, key: number) => boolean} isVisible
   */
  async refine(isVisible) {
    const { controls } = this;
    const { list } = controls.axis;
    const asked = this.#asked;
    const span = controls.zoom?.x;
    const looking = String(span);
    this.#looking = looking;
    const rounds = span && leftOut(this.#seen(list, isVisible), list, span);
    if (!rounds) {
      this.#detail = null;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLING_MS));
    if (looking !== this.#looking) return;
    const address = this.#address();
    address.searchParams.set("from_round", String(rounds[0]));
    address.searchParams.set("to_round", String(rounds[1]));
    try {
      /** @type {AnyResults} */
      const { arms } = await call("GET", address.pathname + address.search);
      if (asked !== this.#asked || looking !== this.#looking) return;
      this.#detail = { rounds, curves: arms.map((arm) => arm.curves) };
      this.told.refined();
    } catch (error) {
      if (looking === this.#looking) tell(wordsOf(error), "error");
    }
  }

  /** True if what is zoomed into is not what was asked for last. */
  get isElsewhere() {
    return String(this.controls.zoom?.x) !== this.#looking;
  }

  /**
   * The curves of the table's metric that are drawn.
   * @param {Places} list
   * @param {(arm: ArmResult, key: number) => boolean} isVisible
   */
  #seen(list, isVisible) {
    const arms = this.results?.arms.filter(isVisible) ?? [];
    return arms
      .map((arm) => arm.curves[this.controls.metric])
      .filter((curve) => curve && isKnown(curve, list));
  }

  /**
   * The curve of an arm, with all points that are known of what is zoomed into.
   * @param {ArmResult} arm
   * @param {number} key
   * @param {string} metric
   * @returns {Curve | undefined}
   */
  curve(arm, key, metric) {
    const curve = arm.curves[metric];
    const finer = this.#detail?.curves[key]?.[metric];
    return curve && finer && this.#detail ? joined(curve, finer, this.#detail.rounds) : curve;
  }
}

/**
 * New results with the curves that there were, as far as they have not changed.
 * @param {AnyResults} before
 * @param {AnyResults} found
 * @returns {AnyResults}
 */
function continued(before, found) {
  const known = new Map(before.arms.map((arm) => [identity(before, arm), arm.curves]));
  const arms = found.arms.map((arm) => {
    const curves = { ...known.get(identity(found, arm)) };
    for (const [name, curve] of Object.entries(arm.curves))
      curves[name] = curves[name] ? joined(curves[name], curve, [arm.curves_from, Infinity]) : curve;
    return { ...arm, curves };
  });
  return { ...found, arms };
}

/**
 * An arm from one answer to the next. In a comparison its index is its place, which changes when an experiment before it gets more arms.
 * @param {AnyResults} results
 * @param {ArmResult} arm
 */
function identity({ members }, { index }) {
  return members ? `${members[index].experiment_id}:${members[index].arm}` : index;
}
