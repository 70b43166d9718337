// Curves and results of the arms of an experiment, or of several. Of what is shown, controls, results, list of arms, lines, theory and points have modules of their own (curves-*.js).
import { onTheme, short, shortShare, strokeOf, theme } from "./axes.js";
import { Chart, nearest } from "./chart.js";
import { AXES, Controls, inWords } from "./curves-controls.js";
import { Legend } from "./curves-legend.js";
import { bestSoFar, isKnown, placesOf, reading, smoothed } from "./curves-lines.js";
import { fillPoints } from "./curves-points.js";
import { ENDED, ResultsSource } from "./curves-results.js";
import { formulas, lawOf } from "./curves-theory.js";
import { find, h } from "./elements.js";
import { comparisonOf, explanation, fillTable, format, isShare } from "./results-table.js";
import { call, tell, wordsOf } from "./service.js";

/** @import { AnyResults, ArmResult, Theory } from "../types/answers" */
/** @import { View } from "./chart.js" */
/** @import { CurveLine } from "./curves-lines.js" */

/** Arms that are read aloud. */
const MOST_SPOKEN = 8;

class Curves {
  /** @type {Map<string, Chart<CurveLine>>} */
  charts = new Map();
  /** @type {Theory | null} */
  theory = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.controls = new Controls(root);
    this.plots = find(root, ".plots");
    this.laws = find(root, ".laws");
    this.points = find(root, "details.wide", HTMLDetailsElement);
    this.legend = new Legend(root, this.controls, {
      changed: () => this.draw(),
      pointed: (key) => {
        for (const chart of this.charts.values()) chart.focus(key);
      },
    });
    this.source = new ResultsSource(root, this.controls, {
      loaded: (results) => this.begun(results),
      refined: () => this.draw(),
    });
    this.listen();
  }

  listen() {
    const { controls, root, source } = this;
    const { fields } = controls;
    const draw = () => {
      controls.remember();
      this.draw();
    };
    const drawAnew = () => {
      controls.zoom = null;
      draw();
    };
    fields.metric.addEventListener("change", () => {
      controls.startMetric();
      source.load();
    });
    controls.more.addEventListener("change", () => source.load());
    fields.target?.addEventListener("change", () => {
      controls.startTarget();
      source.load();
    });
    fields.baseline.addEventListener("change", () => {
      controls.baseline = fields.baseline.value || null;
      source.load();
    });
    fields.theory.addEventListener("change", () => {
      controls.remember();
      this.overlay();
    });
    for (const field of [fields.x, fields.logx, fields.logy]) field.addEventListener("change", drawAnew);
    for (const field of [fields.band, fields.best, fields.smooth, fields.find])
      field.addEventListener("input", draw);
    fields.figure.addEventListener("change", () => source.load());
    controls.form.addEventListener("submit", (event) => event.preventDefault());
    find(root, "[data-reset]").addEventListener("click", () => this.zoomTo(null));
    this.points.addEventListener("toggle", () => this.table());
    onTheme(() => this.draw());
  }

  async begin() {
    await this.source.load();
    if (this.controls.fields.theory.checked) this.overlay();
  }

  /** @param {AnyResults} results */
  begun(results) {
    this.controls.offerBaselines(results.arms.map((arm) => arm.name));
    this.legend.fill(results);
    this.draw();
    this.refine();
  }

  /** Have points that were left out of what is zoomed into put in. */
  refine() {
    this.source.refine((arm, key) => this.legend.isVisible(arm, key));
  }

  /**
   * What is drawn of a metric: the arms that are switched on, over what the controls say.
   * @param {ArmResult[]} arms
   * @param {string} metric
   * @returns {CurveLine[]}
   */
  lines(arms, metric) {
    const { controls, theory } = this;
    const { band, best, smooth, theory: withTheory } = controls.fields;
    const { list } = controls.axis;
    const { dark } = theme(this.root);
    const better = best.checked ? controls.better[metric] : undefined;
    return arms.flatMap((arm, key) => {
      const curve = this.source.curve(arm, key, metric);
      if (!curve || !this.legend.isVisible(arm, key) || !isKnown(curve, list)) return [];
      const drawn = better
        ? bestSoFar(curve, better)
        : smoothed(curve, band.value, Number(smooth.value) || 0);
      return [
        {
          key,
          curve,
          name: arm.name,
          ...strokeOf(key, dark),
          x: placesOf(curve, list),
          ...drawn,
          theory: theory && withTheory.checked ? lawOf(theory, arm, curve, list, metric) : null,
        },
      ];
    });
  }

  /**
   * A chart for each metric, the charts that there are where they are wanted still.
   * @param {string[]} shown
   */
  panels(shown) {
    if (String([...this.charts.keys()]) === String(shown)) return;
    for (const [metric, chart] of this.charts) if (!shown.includes(metric)) chart.destroy();
    this.charts = new Map(shown.map((metric) => [metric, this.charts.get(metric) ?? this.panel(metric)]));
    this.plots.replaceChildren(...[...this.charts.values()].map((chart) => chart.root));
    this.plots.classList.toggle("several", shown.length > 1);
  }

  /** @param {string} metric */
  panel(metric) {
    const plot = h("div", { class: "plot", tabindex: 0, role: "application" });
    /** @type {Chart<CurveLine>} */
    const chart = new Chart(plot, {
      tell: (line, at) => reading(line, at, metric),
      place: (x) => this.place(x),
    });
    plot.addEventListener("fedq:zoom", () => this.zoomTo(chart.view, metric));
    plot.addEventListener("fedq:place", ({ detail }) => this.read(detail.x, detail.spoken));
    return chart;
  }

  draw() {
    const { results } = this.source;
    if (!results) return;
    const { controls } = this;
    const shown = controls.shown();
    this.offerAxes(results, shown);
    const focused = document.activeElement?.closest(".plot");
    this.panels(shown);
    if (focused instanceof HTMLElement && document.activeElement !== focused) focused.focus();
    let drawn = 0;
    for (const metric of shown) drawn += this.drawMetric(results, metric);
    this.plots.hidden = drawn === 0;
    const nothing = find(this.root, ".nothing");
    nothing.hidden = drawn > 0;
    nothing.textContent = drawn ? "" : this.absence(results);
    find(this.root, "[data-reset]", HTMLButtonElement).disabled = controls.zoom === null;
    this.legend.paint();
    this.table();
    this.read(null, false);
  }

  /**
   * Draw the curves of a metric; returns how many.
   * @param {AnyResults} results
   * @param {string} metric
   */
  drawMetric({ arms }, metric) {
    const { controls } = this;
    const { best, logx, logy, x } = controls.fields;
    const chart = this.charts.get(metric);
    if (!chart) return 0;
    const lines = this.lines(arms, metric);
    const unit = isShare(metric) ? ", %" : "";
    const isBest = best.checked && metric in controls.better;
    const options = {
      logX: logx.checked,
      logY: logy.checked,
      xLabel: controls.axis.words,
      yLabel: inWords(metric) + unit + (isBest ? ", best so far" : ""),
      integers: x.value === "round",
      text: isShare(metric) ? shortShare : short,
    };
    const { zoom } = controls;
    chart.show(lines, options, zoom && { x: zoom.x, y: metric === controls.metric ? zoom.y : null });
    chart.root.setAttribute(
      "aria-label",
      `${inWords(metric)} over ${controls.axis.words.toLowerCase()}, ${lines.length} of ${arms.length} arms. Arrow keys read values, plus and minus zoom, 0 resets the zoom.`,
    );
    return lines.length;
  }

  /**
   * Offer what the results have.
   * @param {AnyResults} results
   * @param {string[]} shown
   */
  offerAxes({ arms }, shown) {
    const { best, x } = this.controls.fields;
    const curves = arms.map((arm) => arm.curves[shown[0]]).filter(Boolean);
    for (const name of ["time", "epsilon"]) {
      const isOffered = curves.some((curve) => isKnown(curve, AXES[name].list));
      find(x, `[value=${name}]`, HTMLOptionElement).disabled = !isOffered;
    }
    best.disabled = !shown.some((metric) => metric in this.controls.better);
  }

  /**
   * Why no line is drawn.
   * @param {AnyResults} results
   */
  absence({ arms }) {
    const { controls, legend } = this;
    if (!arms.some((arm) => legend.isWanted(arm.name)))
      return `No arm is called “${controls.fields.find.value.trim()}”.`;
    const visible = arms.filter((arm, key) => legend.isVisible(arm, key));
    if (!visible.length) return "All arms are hidden. Select some in the list of arms.";
    const words = inWords(controls.metric);
    if (visible.some((arm) => arm.curves[controls.metric]))
      return `There is no ${controls.axis.words.toLowerCase()} of these arms. Choose another horizontal axis.`;
    const isOver = visible.every((arm) => Object.keys(arm.runs).every((status) => ENDED.has(status)));
    if (isOver || visible.some((arm) => Object.keys(arm.curves).length))
      return `The selected arms have no ${words}.`;
    return `No ${words} yet: the first evaluation is after round ${this.root.dataset.first}.`;
  }

  /**
   * Zoom all charts into the same stretch; the height of a selection is that of the metric it was made in.
   * @param {View | null} view
   * @param {string | null} metric
   */
  zoomTo(view, metric = null) {
    const { controls } = this;
    controls.zoom = view && { x: view.x, y: metric === controls.metric ? view.y : null };
    controls.remember();
    this.draw();
    if (this.source.isElsewhere) this.refine();
  }

  /**
   * A place on the horizontal axis in words; null is the end.
   * @param {number | null} x
   */
  place(x) {
    const { axis, fields } = this.controls;
    return x === null
      ? "at the end"
      : `${axis.words} ${fields.x.value === "round" ? Math.round(x) : format(x)}`;
  }

  /**
   * Tell the values at `x` beside the names of the arms; null tells the last ones.
   * @param {number | null} x
   * @param {boolean} spoken
   */
  read(x, spoken) {
    const { metric } = this.controls;
    const lines = this.charts.get(metric)?.lines ?? [];
    const read = lines.flatMap((line) => {
      const at = x === null ? line.x.length - 1 : nearest(line.x, x);
      return at < 0 ? [] : [{ key: line.key, name: line.name, value: reading(line, at, metric) }];
    });
    this.legend.tell(new Map(read.map(({ key, value }) => [key, value])));
    find(this.root, ".place").textContent = this.place(x);
    if (!spoken) return;
    const words = read.slice(0, MOST_SPOKEN).map(({ name, value }) => `${name} ${value}`);
    find(this.root, ".spoken").textContent = `${this.place(x)}: ${words.join("; ")}`;
  }

  /** Fill the table of results, and that of points while it is open. */
  table() {
    const { controls, root } = this;
    const { results } = this.source;
    if (!results) return;
    const { metric } = controls;
    const compared = comparisonOf(results, metric);
    fillTable(
      find(root, "table.results", HTMLTableElement),
      results,
      metric,
      controls.better[metric],
      compared,
    );
    find(root, ".conclusion").textContent = compared?.says ?? "";
    find(root, ".explained").textContent = explanation(results, compared);
    if (!this.points.open) return;
    const visible = results.arms.filter((arm, key) => this.legend.isVisible(arm, key));
    fillPoints(find(this.points, "table"), visible, controls.shown());
  }

  /** Draw what theory says, or no longer, as the control says. */
  async overlay() {
    const { checked } = this.controls.fields.theory;
    if (!this.theory && checked) {
      try {
        /** @type {Theory} */
        const found = await call("GET", this.root.dataset.theory ?? "");
        this.theory = found;
        this.laws.replaceChildren(...formulas(found));
      } catch (error) {
        tell(wordsOf(error), "error");
      }
    }
    this.laws.hidden = !this.controls.fields.theory.checked;
    this.draw();
  }
}

// In a tab that is not open nothing is asked for.
const root = find(document, ".curves");
const curves = new Curves(root);
new IntersectionObserver((entries, observer) => {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  observer.disconnect();
  curves.begin();
}).observe(root);
