// The list of arms beside the curves: which are drawn, in which stroke, and their values at a place.
import { strokeOf, theme } from "./axes.js";
import { find, h } from "./elements.js";
import { hiddenArms, hideArms } from "./view.js";

/** @import { AnyResults, ArmResult } from "../types/answers" */
/** @import { Controls } from "./curves-controls.js" */

/** Fewer arms need no search. */
const LARGE = 8;
const SVG = "http://www.w3.org/2000/svg";

/**
 * Entry of an arm.
 * @typedef {{ name: string, box: HTMLInputElement, stroke: SVGLineElement, value: HTMLElement, made: HTMLElement }} Item
 */

export class Legend {
  hidden = hiddenArms();
  /** @type {Map<number, Item>} */
  items = new Map();

  /**
   * @param {HTMLElement} root of all curves
   * @param {Controls} controls
   * @param {{ changed: () => void, pointed: (key: number | null) => void }} told of arms that are shown or hidden, and of one that is pointed at
   */
  constructor(root, controls, told) {
    this.root = root;
    this.controls = controls;
    this.list = find(root, ".arms ul");
    this.#listen(told);
  }

  /** @param {{ changed: () => void, pointed: (key: number | null) => void }} told */
  #listen({ changed, pointed }) {
    find(this.root, "[data-all]").addEventListener("click", () => this.#choose(true));
    find(this.root, "[data-none]").addEventListener("click", () => this.#choose(false));
    this.list.addEventListener("change", ({ target }) => {
      const box = /** @type {HTMLInputElement} */ (target);
      if (box.checked) this.hidden.delete(Number(box.value));
      else this.hidden.add(Number(box.value));
      hideArms(this.hidden);
    });
    document.addEventListener("fedq:hidden", ({ detail }) => {
      this.hidden = detail;
      for (const [key, { box }] of this.items) box.checked = !detail.has(key);
      changed();
    });
    /** @param {Event} event */
    const enter = ({ target }) => {
      const item = target instanceof Element ? target.closest("li") : null;
      if (item) pointed(Number(item.dataset.key));
    };
    for (const name of ["mouseover", "focusin"]) this.list.addEventListener(name, enter);
    for (const name of ["mouseleave", "focusout"]) this.list.addEventListener(name, () => pointed(null));
  }

  /**
   * List the arms; the list stays where they are those that it has.
   * @param {AnyResults} results
   */
  fill({ arms }) {
    find(this.root, "[data-find]").hidden = arms.length <= LARGE && !this.controls.fields.find.value;
    if (this.items.size === arms.length && arms.every((arm, at) => this.items.get(at)?.name === arm.name))
      return;
    this.items = new Map(arms.map((arm, key) => [key, this.#item(arm, key)]));
    this.list.replaceChildren(...[...this.items.values()].map(({ made }) => made));
  }

  /**
   * @param {ArmResult} arm
   * @param {number} key
   * @returns {Item}
   */
  #item({ name }, key) {
    const box = h("input", { type: "checkbox", value: key });
    box.checked = !this.hidden.has(key);
    const swatch = document.createElementNS(SVG, "svg");
    swatch.setAttribute("viewBox", "0 0 26 10");
    swatch.setAttribute("aria-hidden", "true");
    const stroke = document.createElementNS(SVG, "line");
    for (const [about, value] of Object.entries({ x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.5 }))
      stroke.setAttribute(about, String(value));
    swatch.append(stroke);
    const value = h("span", { class: "number value" });
    const made = h(
      "li",
      { "data-key": key },
      h("label", {}, box, swatch, h("span", { class: "name" }, name)),
      value,
    );
    return { name, box, stroke, value, made };
  }

  /** Give the swatches the colours of the theme, and leave the arms that are looked for. */
  paint() {
    const { dark } = theme(this.root);
    for (const [key, { stroke, made, name }] of this.items) {
      const { colour, dash } = strokeOf(key, dark);
      stroke.setAttribute("stroke", colour);
      stroke.setAttribute("stroke-dasharray", dash.join(" "));
      made.hidden = !this.isWanted(name);
    }
  }

  /**
   * Tell a value beside the name of each arm that has one.
   * @param {Map<number, string>} values
   */
  tell(values) {
    for (const [key, { value }] of this.items) value.textContent = values.get(key) ?? "";
  }

  /**
   * Show or hide all arms that are found.
   * @param {boolean} shown
   */
  #choose(shown) {
    for (const [key, { name }] of this.items) {
      if (!this.isWanted(name)) continue;
      if (shown) this.hidden.delete(key);
      else this.hidden.add(key);
    }
    hideArms(this.hidden);
  }

  /**
   * True of an arm whose name has all words that are looked for.
   * @param {string} name
   */
  isWanted(name) {
    return this.controls.sought.every((word) => name.toLowerCase().includes(word));
  }

  /**
   * True of an arm that is drawn.
   * @param {ArmResult} arm
   * @param {number} key
   */
  isVisible({ name }, key) {
    return !this.hidden.has(key) && this.isWanted(name);
  }
}
