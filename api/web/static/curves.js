// Curves and results of the arms of an experiment, or of several: the controls, what is asked for, and when it is asked for again.
import { finite, onTheme, short, shortShare, strokeOf, theme } from "./axes.js";
import { Chart, nearest, prepare } from "./chart.js";
import { joined, leftOut } from "./closer.js";
import { h } from "./elements.js";
import { explanation, fillTable, format, isShare } from "./results-table.js";
import { call, tell } from "./service.js";
import { hiddenArms, hideArms, remember, viewed, viewedAll } from "./view.js";

const AXES = {
  round: ["rounds", "Round"],
  bytes: ["megabytes", "Megabytes sent"],
  time: ["simulated_seconds", "Simulated seconds"],
  epsilon: ["epsilon", "Epsilon"],
};
const LOGARITHMIC = new Set(["suboptimality", "distance"]);
const ENDED = new Set(["succeeded", "failed", "cancelled", "paused"]);
const LARGE = 8;
const QUIET_S = 2;
/** Of a position in an address; that of thousands of runs that all stand elsewhere is longer than a request's head may be. */
const LONGEST_POSITION = 8000;
/** Zooming in several steps loads data once, after the last one. */
const SETTLING_MS = 150;
/** Student's t of the 95 % interval by degrees of freedom; from 31 on close to the normal distribution's. */
const T = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131,
  2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/** The ways a band reaches from the mean, for a deviation over n seeds. */
const REACH = {
  std: (std) => std,
  ci: (std, n) => ((T[n - 2] ?? 1.96) * std) / Math.sqrt(n),
};

class Curves {
  constructor(root) {
    this.root = root;
    this.controls = root.querySelector("form").elements;
    this.better = JSON.parse(root.dataset.better);
    this.metrics = JSON.parse(root.dataset.metrics);
    this.plots = root.querySelector(".plots");
    this.legend = root.querySelector(".arms ul");
    this.hidden = hiddenArms();
    this.items = new Map();
    this.charts = new Map();
    this.drawn = [];
    this.results = null;
    this.detail = null;
    this.looking = null;
    this.laws = null;
    this.asked = 0;
    this.waiting = null;
    this.zoom = null;
    this.restore();
    this.listen();
  }

  /** Set the controls as the address says. */
  restore() {
    const { controls, metrics } = this;
    const chosen = viewedAll("metric").filter((metric) => metrics.includes(metric));
    const words = (metric) => metric.replaceAll("_", " ");
    controls.metric.replaceChildren(
      ...metrics.map((metric) => h("option", { value: metric }, words(metric))),
    );
    if (chosen.length) controls.metric.value = chosen[0];
    this.root.querySelector(".more").replaceChildren(
      ...metrics.map((metric) => {
        const box = h("input", { type: "checkbox", name: "more", value: metric });
        box.checked = chosen.slice(1).includes(metric);
        return h("label", { class: "switch" }, box, words(metric));
      }),
    );
    const log = viewed("log");
    controls.logx.checked = log?.includes("x") ?? false;
    controls.logy.checked = log?.includes("y") ?? LOGARITHMIC.has(controls.metric.value);
    for (const name of ["best", "theory"]) controls[name].checked = viewed(name) === "yes";
    for (const name of ["x", "band", "figure"]) {
      if ([...controls[name].options].some(({ value }) => value === viewed(name)))
        controls[name].value = viewed(name);
    }
    controls.smooth.value = viewed("smooth") ?? "";
    controls.find.value = viewed("find") ?? "";
    if (controls.target) controls.target.value = viewed("target") ?? "";
    this.baseline = /^\d{1,6}$/.test(viewed("baseline") ?? "") ? viewed("baseline") : null;
    const ends = (viewed("zoom") ?? "").split(",").map(Number);
    if (
      [2, 4].includes(ends.length) &&
      ends.every(Number.isFinite) &&
      ends[0] < ends[1] &&
      !(ends[2] >= ends[3])
    )
      this.zoom = { x: ends.slice(0, 2), y: ends.length === 4 ? ends.slice(2) : null };
  }

  /** Put into the address what differs from a page that has just been opened. */
  remember() {
    const { controls, zoom } = this;
    const unless = (value, usual) => (value === usual ? null : value);
    const log = (controls.logx.checked ? "x" : "") + (controls.logy.checked ? "y" : "");
    const shown = this.shown();
    remember({
      metric: shown.length === 1 && shown[0] === this.metrics[0] ? null : shown,
      log: unless(log || "none", LOGARITHMIC.has(shown[0]) ? "y" : "none"),
      x: unless(controls.x.value, "round"),
      band: unless(controls.band.value, "std"),
      smooth: controls.smooth.value,
      best: controls.best.checked ? "yes" : null,
      theory: controls.theory.checked ? "yes" : null,
      find: controls.find.value.trim(),
      figure: unless(controls.figure.value, "final"),
      target: controls.target?.value,
      baseline: unless(this.baseline, "0"),
      zoom: zoom && [...zoom.x, ...(zoom.y ?? [])].map((value) => Number(value.toPrecision(6))).join(","),
    });
  }

  listen() {
    const { controls, root } = this;
    const draw = () => {
      this.remember();
      this.draw();
    };
    const anew = () => {
      this.zoom = null;
      draw();
    };
    controls.metric.addEventListener("change", () => {
      controls.logy.checked = LOGARITHMIC.has(controls.metric.value);
      if (controls.target) controls.target.value = "";
      this.zoom = null;
      this.load();
    });
    root.querySelector(".more").addEventListener("change", () => this.load());
    controls.target?.addEventListener("change", () => this.load());
    controls.baseline.addEventListener("change", () => {
      this.baseline = controls.baseline.value;
      this.load();
    });
    controls.theory.addEventListener("change", () => {
      this.remember();
      this.overlay();
    });
    for (const name of ["x", "logx", "logy"]) controls[name].addEventListener("change", anew);
    for (const name of ["band", "best", "smooth", "find"]) controls[name].addEventListener("input", draw);
    controls.figure.addEventListener("change", () => {
      this.remember();
      this.table();
    });
    root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    root.querySelector("[data-reset]").addEventListener("click", () => this.zoomTo(null));
    root.querySelector("[data-all]").addEventListener("click", () => this.choose(true));
    root.querySelector("[data-none]").addEventListener("click", () => this.choose(false));
    root.querySelector("details.wide").addEventListener("toggle", () => this.numbers());
    this.legend.addEventListener("change", (event) => {
      const key = Number(event.target.value);
      if (event.target.checked) this.hidden.delete(key);
      else this.hidden.add(key);
      hideArms(this.hidden);
    });
    document.addEventListener("fedq:hidden", ({ detail }) => {
      this.hidden = detail;
      for (const [key, { box }] of this.items) box.checked = !detail.has(key);
      this.draw();
    });
    for (const [enter, leave] of [
      ["mouseover", "mouseleave"],
      ["focusin", "focusout"],
    ]) {
      this.legend.addEventListener(enter, (event) => {
        const item = event.target.closest("li");
        if (item) for (const chart of this.charts.values()) chart.focus(Number(item.dataset.key));
      });
      this.legend.addEventListener(leave, () => {
        for (const chart of this.charts.values()) chart.focus(null);
      });
    }
    onTheme(() => this.draw());
    document.addEventListener("fedq:moved", () => this.results && this.renew());
    document.addEventListener("visibilitychange", () => {
      if (this.waiting === "hidden") {
        this.waiting = null;
        this.renew();
      }
    });
  }

  async begin() {
    await this.load();
    if (this.controls.theory.checked) this.overlay();
  }

  /** The metrics that are drawn, first the one of the table. */
  shown() {
    const first = this.controls.metric.value;
    const more = [...this.root.querySelectorAll(".more input")];
    for (const box of more) box.disabled = box.value === first;
    return [first, ...more.filter((box) => box.checked && box.value !== first).map((box) => box.value)];
  }

  /** Ask for what the controls say; an answer that has been overtaken is dropped. With `live`, for what has changed since. */
  async load(live = false) {
    const { controls, root } = this;
    const asked = ++this.asked;
    const began = performance.now();
    root.setAttribute("aria-busy", "true");
    try {
      const address = this.address();
      if (this.baseline !== null) address.searchParams.set("baseline", this.baseline);
      const target = this.target();
      if (target !== null) address.searchParams.set("target", `${controls.metric.value}:${target}`);
      this.remember();
      const since = live && this.grown() ? this.results.position : null;
      if (since) address.searchParams.set("since", since);
      const [found] = await Promise.all([call("GET", address.pathname + address.search), prepare()]);
      if (asked !== this.asked) return;
      this.results = since ? this.continued(found) : found;
      this.took = performance.now() - began;
      this.fillBaselines();
      this.fillLegend();
      this.draw();
      this.look();
      // No event reports changes of a comparison.
      if (found.members?.some(({ status }) => !ENDED.has(status))) this.renew();
    } catch (error) {
      if (asked === this.asked) tell(error.message, "error");
    } finally {
      if (asked === this.asked) root.removeAttribute("aria-busy");
      if (asked === this.asked && this.waiting === "answer") this.later();
    }
  }

  /** Where results are asked for, of the metrics that are drawn. */
  address() {
    const address = new URL(this.root.dataset.results, location.href);
    for (const metric of this.shown()) address.searchParams.append("metric", metric);
    address.searchParams.set("points", this.points);
    return address;
  }

  get points() {
    return Math.round(Math.min(1000, Math.max(200, 40_000 / Number(this.root.dataset.arms))));
  }

  /** True if what has changed can be put behind what there is: with the position it stands at, and not yet twice as many points as asked for. */
  grown() {
    const curves = this.results?.arms.flatMap((arm) => Object.values(arm.curves)) ?? [];
    const position = this.results?.position ?? "";
    return (
      position.length > 0 &&
      position.length < LONGEST_POSITION &&
      curves.every(({ rounds }) => rounds.length < 2 * this.points)
    );
  }

  /** New results with the curves that there were, as far as they have not changed. */
  continued(found) {
    const before = new Map(this.results.arms.map((arm) => [identity(this.results, arm), arm.curves]));
    const arms = found.arms.map((arm) => {
      const old = before.get(identity(found, arm)) ?? {};
      const names = new Set([...Object.keys(old), ...Object.keys(arm.curves)]);
      const curves = Object.fromEntries(
        [...names].map((name) => [
          name,
          !old[name]
            ? arm.curves[name]
            : !arm.curves[name]
              ? old[name]
              : joined(old[name], arm.curves[name], [arm.curves_from, Infinity]),
        ]),
      );
      return { ...arm, curves };
    });
    return { ...found, arms };
  }

  /** What runs are to reach, in the units of the metric; null of none, and of a metric without better and worse. */
  target() {
    const { target, figure, metric } = this.controls;
    if (!target) return null;
    const known = metric.value in this.better;
    target.disabled = !known;
    const value =
      known && target.value !== "" ? Number(target.value) / (isShare(metric.value) ? 100 : 1) : null;
    figure.querySelector("[value=target]").disabled = value === null;
    if (value === null && figure.value === "target") figure.value = "final";
    return value;
  }

  /** Reload after a change: not too often, not while a response is pending, and not while the page is hidden. */
  renew() {
    if (this.waiting !== null) return;
    if (document.hidden) this.waiting = "hidden";
    else if (this.root.hasAttribute("aria-busy")) this.waiting = "answer";
    else this.later();
  }

  later() {
    this.waiting = setTimeout(
      () => {
        this.waiting = null;
        if (this.root.hasAttribute("aria-busy")) this.renew();
        else this.load(true);
      },
      Math.max(1000 * QUIET_S, 10 * (this.took ?? 0)),
    );
  }

  fillBaselines() {
    const { baseline } = this.controls;
    const names = this.results.arms.map((arm) => arm.name);
    if (baseline.length !== names.length)
      baseline.replaceChildren(...names.map((name, at) => h("option", { value: at }, name)));
    this.baseline = baseline.value = String(this.results.baseline);
  }

  fillLegend() {
    const { arms } = this.results;
    this.root.querySelector("[data-find]").hidden = arms.length <= LARGE && !this.controls.find.value;
    if (this.items.size === arms.length && arms.every((arm, at) => this.items.get(at)?.name === arm.name))
      return;
    this.items.clear();
    this.legend.replaceChildren(...arms.map((arm, key) => this.item(arm, key)));
  }

  item(arm, key) {
    const box = h("input", { type: "checkbox", value: key });
    box.checked = !this.hidden.has(key);
    const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    swatch.setAttribute("viewBox", "0 0 26 10");
    swatch.setAttribute("aria-hidden", "true");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.5 }))
      stroke.setAttribute(name, value);
    swatch.append(stroke);
    const value = h("span", { class: "number value" });
    const made = h(
      "li",
      { "data-key": key },
      h("label", {}, box, swatch, h("span", { class: "name" }, arm.name)),
      value,
    );
    this.items.set(key, { name: arm.name, box, stroke, value, made });
    return made;
  }

  /** Give the swatches the colours of the theme, and leave the arms that are looked for. */
  paint() {
    const { dark } = theme(this.root);
    for (const [key, { stroke, made }] of this.items) {
      const { colour, dash } = strokeOf(key, dark);
      stroke.setAttribute("stroke", colour);
      stroke.setAttribute("stroke-dasharray", dash.join(" "));
      made.hidden = !this.wanted(key);
    }
  }

  /** Show or hide all arms that are found. */
  choose(shown) {
    for (const key of this.items.keys()) {
      if (!this.wanted(key)) continue;
      if (shown) this.hidden.delete(key);
      else this.hidden.add(key);
    }
    hideArms(this.hidden);
  }

  /** True of an arm whose name has all words that are looked for. */
  wanted(key) {
    const name = this.results.arms[key].name.toLowerCase();
    return this.controls.find.value
      .toLowerCase()
      .split(/\s+/)
      .every((word) => name.includes(word));
  }

  /** True of an arm that is drawn. */
  visible(key) {
    return !this.hidden.has(key) && this.wanted(key);
  }

  /** What is drawn of a metric: the arms that are switched on, over what the controls say. */
  lines(metric) {
    const { x, band, best, smooth } = this.controls;
    const [list] = AXES[x.value];
    const { dark } = theme(this.root);
    const better = best.checked ? this.better[metric] : undefined;
    return this.results.arms.flatMap((arm, key) => {
      const curve = this.curve(arm, key, metric);
      if (!curve || !this.visible(key) || curve[list].includes(null)) return [];
      const drawn = better
        ? { mean: bestSoFar(curve.mean, better) }
        : smoothed(curve, band.value, Number(smooth.value) || 0);
      return [
        {
          key,
          curve,
          name: arm.name,
          ...strokeOf(key, dark),
          x: curve[list],
          low: null,
          high: null,
          raw: null,
          ...drawn,
          theory: this.law(arm, curve, list, metric),
        },
      ];
    });
  }

  /** What theory says of an arm, over the same axis and no further than it has come. */
  law(arm, curve, list, metric) {
    const found = this.controls.theory.checked ? this.laws?.get(arm.index) : null;
    const values = found?.curves[metric];
    if (!values) return null;
    const inside = found.rounds
      .map((round, at) => at)
      .filter((at) => found.rounds[at] >= curve.rounds[0] && found.rounds[at] <= curve.rounds.at(-1));
    return {
      x: inside.map((at) => across(curve, list, found.rounds[at])),
      y: inside.map((at) => values[at]),
    };
  }

  /** A chart for each metric, the charts that there are where they are wanted still. */
  panels(shown) {
    for (const [metric, chart] of this.charts) {
      if (shown.includes(metric)) continue;
      chart.destroy();
      chart.root.remove();
      this.charts.delete(metric);
    }
    for (const metric of shown) {
      if (this.charts.has(metric)) continue;
      const plot = h("div", { class: "plot", tabindex: 0, role: "application" });
      const chart = new Chart(plot, {
        tell: (line, at) => reading(line.curve, at, metric, line.mean),
        place: (x) => this.place(x),
      });
      plot.addEventListener("fedq:zoom", () => this.zoomTo(chart.view, metric));
      plot.addEventListener("fedq:place", ({ detail }) => this.read(detail.x, detail.spoken));
      this.charts.set(metric, chart);
    }
    this.plots.replaceChildren(...shown.map((metric) => this.charts.get(metric).root));
    this.plots.classList.toggle("several", shown.length > 1);
    this.drawn = shown;
  }

  draw() {
    if (!this.results) return;
    const { x, logx, logy, best } = this.controls;
    const shown = this.shown();
    const [main] = shown;
    for (const axis of ["time", "epsilon"]) {
      const [list] = AXES[axis];
      const known = this.results.arms.some(
        (arm) => arm.curves[main] && !arm.curves[main][list].includes(null),
      );
      x.querySelector(`[value=${axis}]`).disabled = !known;
    }
    best.disabled = !shown.some((metric) => metric in this.better);
    const focused = document.activeElement?.closest?.(".plot");
    if (String(this.drawn) !== String(shown)) this.panels(shown);
    if (focused && document.activeElement !== focused) focused.focus();
    let drawn = 0;
    for (const [metric, chart] of this.charts) {
      const lines = this.lines(metric);
      const words = metric.replaceAll("_", " ");
      const unit = isShare(metric) ? ", %" : "";
      const view = this.zoom && { x: this.zoom.x, y: metric === main ? this.zoom.y : null };
      chart.show(
        lines,
        {
          logX: logx.checked,
          logY: logy.checked,
          xLabel: AXES[x.value][1],
          yLabel: words + unit + (best.checked && metric in this.better ? ", best so far" : ""),
          integers: x.value === "round",
          text: isShare(metric) ? shortShare : short,
        },
        view,
      );
      const count = `${lines.length} of ${this.results.arms.length} arms`;
      chart.root.setAttribute(
        "aria-label",
        `${words} over ${AXES[x.value][1].toLowerCase()}, ${count}. Arrow keys read values, plus and minus zoom, 0 resets the zoom.`,
      );
      drawn += lines.length;
    }
    this.plots.hidden = drawn === 0;
    const nothing = this.root.querySelector(".nothing");
    nothing.hidden = drawn > 0;
    nothing.textContent = drawn ? "" : this.absence();
    this.root.querySelector("[data-reset]").disabled = this.zoom === null;
    this.paint();
    this.table();
    this.numbers();
    this.read(null, false);
  }

  /** Why no line is drawn. */
  absence() {
    const { arms } = this.results;
    const { find, x } = this.controls;
    if (!arms.some((_, key) => this.wanted(key))) return `No arm is called “${find.value.trim()}”.`;
    const visible = arms.filter((_, key) => this.visible(key));
    if (!visible.length) return "All arms are hidden. Select some in the list of arms.";
    const [metric] = this.shown();
    const words = metric.replaceAll("_", " ");
    if (visible.some((arm) => arm.curves[metric]))
      return `There is no ${AXES[x.value][1].toLowerCase()} of these arms. Choose another horizontal axis.`;
    const isOver = visible.every((arm) => Object.keys(arm.runs).every((status) => ENDED.has(status)));
    if (isOver || visible.some((arm) => Object.keys(arm.curves).length))
      return `The selected arms have no ${words}.`;
    return `No ${words} yet: the first evaluation is after round ${this.root.dataset.first}.`;
  }

  /** Zoom all charts into the same stretch; the height of a selection is that of the metric it was made in. */
  zoomTo(view, metric = null) {
    this.zoom = view && { x: view.x, y: metric === this.controls.metric.value ? view.y : null };
    this.remember();
    this.draw();
    const span = String(this.zoom?.x);
    if (span === this.looking) return;
    this.looking = span;
    this.look();
  }

  /** Ask for the rounds that are zoomed into, where some of them were left out; they are drawn once they are there. */
  async look() {
    const { metric, x } = this.controls;
    const { asked, looking } = this;
    const span = this.zoom?.x;
    const [list] = AXES[x.value];
    const seen = this.results.arms
      .map((arm) => arm.curves[metric.value])
      .filter((curve, key) => curve && this.visible(key) && !curve[list].includes(null));
    const rounds = span && leftOut(seen, list, span);
    if (!rounds) {
      this.detail = null;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLING_MS));
    if (looking !== this.looking) return;
    const address = this.address();
    address.searchParams.set("from_round", rounds[0]);
    address.searchParams.set("to_round", rounds[1]);
    try {
      const { arms } = await call("GET", address.pathname + address.search);
      if (asked !== this.asked || looking !== this.looking) return;
      this.detail = { rounds, curves: arms.map((arm) => arm.curves) };
      this.draw();
    } catch (error) {
      if (looking === this.looking) tell(error.message, "error");
    }
  }

  /** The curve of an arm, with all points that are known of what is zoomed into. */
  curve(arm, key, metric) {
    const { detail } = this;
    const [curve, finer] = [arm.curves[metric], detail?.curves[key]?.[metric]];
    return curve && finer ? joined(curve, finer, detail.rounds) : curve;
  }

  /** A place on the horizontal axis in words; null is the end. */
  place(x) {
    const { x: axis } = this.controls;
    return x === null
      ? "at the end"
      : `${AXES[axis.value][1]} ${axis.value === "round" ? Math.round(x) : format(x)}`;
  }

  /** Tell the values at `x` beside the names of the arms; null tells the last ones. */
  read(x, spoken) {
    if (!this.results) return;
    const { metric } = this.controls;
    const said = [];
    for (const { value } of this.items.values()) value.textContent = "";
    for (const { key, name, curve, x: places, mean } of this.charts.get(metric.value)?.lines ?? []) {
      const at = x === null ? places.length - 1 : nearest(places, x);
      if (at < 0) continue;
      const { value } = this.items.get(key);
      value.textContent = reading(curve, at, metric.value, mean);
      said.push(`${name} ${value.textContent}`);
    }
    this.root.querySelector(".place").textContent = this.place(x);
    if (spoken)
      this.root.querySelector(".spoken").textContent = `${this.place(x)}: ${said.slice(0, 8).join("; ")}`;
  }

  table() {
    if (!this.results) return;
    const { metric, figure } = this.controls;
    fillTable(
      this.root.querySelector("table.results"),
      this.results,
      metric.value,
      figure.value,
      this.better[metric.value],
    );
    this.root.querySelector(".explained").textContent = explanation(this.results, metric.value, figure.value);
  }

  /** The points that are drawn, as a table; made while it is open. */
  numbers() {
    const details = this.root.querySelector("details.wide");
    if (!details.open || !this.results) return;
    const rows = this.shown().flatMap((metric) =>
      this.results.arms.flatMap((arm, key) => {
        const curve = arm.curves[metric];
        if (!curve || !this.visible(key)) return [];
        return sample(curve.rounds.length, 12).map((at) => [
          arm.name,
          metric.replaceAll("_", " "),
          curve.rounds[at],
          format(curve.megabytes[at]),
          format(curve.simulated_seconds[at]),
          format(curve.mean[at], metric),
          format(curve.std[at], metric),
          curve.n[at],
        ]);
      }),
    );
    const heads = ["Arm", "Metric", "Round", "Megabytes", "Simulated s", "Mean", "Std", "Seeds"];
    const [text, number] = [{}, { class: "number" }];
    details
      .querySelector("table")
      .replaceChildren(
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...heads.map((head, at) => h("th", { scope: "col", class: at > 1 ? "number" : null }, head)),
          ),
        ),
        h(
          "tbody",
          {},
          ...rows
            .slice(0, 1200)
            .map(([name, ...values]) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, name),
                ...values.map((value, at) => h("td", at ? number : text, String(value))),
              ),
            ),
        ),
      );
  }

  async overlay() {
    if (!this.laws && this.controls.theory.checked) {
      try {
        const found = await call("GET", this.root.dataset.theory);
        this.laws = new Map(found.arms.filter((arm) => arm.law).map((arm) => [arm.index, arm.law]));
        this.root.querySelector(".laws").replaceChildren(...laws(found));
      } catch (error) {
        tell(error.message, "error");
      }
    }
    this.root.querySelector(".laws").hidden = !this.controls.theory.checked;
    this.draw();
  }
}

/** An arm from one answer to the next. In a comparison its index is its place, which changes when an experiment before it gets more arms. */
function identity({ members }, { index }) {
  return members ? `${members[index].experiment_id}:${members[index].arm}` : index;
}

/** The best of the values up to each; `better` is `max` or `min`. */
function bestSoFar(values, better) {
  let best = null;
  return values.map((value) => (best = best === null ? value : Math[better](best, value)));
}

/** The lines of a curve, smoothed exponentially with a half-life in rounds; 0 smooths nothing. */
function smoothed({ rounds, mean, std, n }, band, halfLife) {
  const reach = REACH[band];
  const edge = (side) =>
    mean.map((value, at) => finite(value + (std[at] === null ? 0 : side * reach(std[at], n[at]))));
  const smooth = halfLife > 0 ? (values) => average(rounds, values, halfLife) : (values) => values;
  const edges = reach ? { low: smooth(edge(-1)), high: smooth(edge(1)) } : {};
  return { mean: smooth(mean), raw: halfLife > 0 ? mean : null, ...edges };
}

/** Averages of the values so far: each counts for the rounds since the one before, half as much after each half-life. */
function average(rounds, values, halfLife) {
  let [sum, weight] = [0, 0];
  return values.map((value, at) => {
    const kept = 0.5 ** ((at ? rounds[at] - rounds[at - 1] : 1) / halfLife);
    sum = kept * sum + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    return finite(sum / weight);
  });
}

/** The value that is drawn and, where that is the mean itself, its deviation. */
function reading(curve, at, metric, drawn) {
  const value = format(drawn[at], metric);
  return drawn[at] !== curve.mean[at] || curve.std[at] === null
    ? value
    : `${value} ± ${format(curve.std[at], metric)}`;
}

/** Where a round lies on an axis, between those that are known. */
function across(curve, list, round) {
  const at = curve.rounds.findIndex((known) => known >= round);
  if (at <= 0 || curve.rounds[at] === round) return curve[list][Math.max(at, 0)];
  const share = (round - curve.rounds[at - 1]) / (curve.rounds[at] - curve.rounds[at - 1]);
  return curve[list][at - 1] + share * (curve[list][at] - curve[list][at - 1]);
}

/** At most `count` of `length` places, evenly spread, with both ends. */
function sample(length, count) {
  if (length <= count) return [...Array(length).keys()];
  return Array.from({ length: count }, (_, at) => Math.round((at * (length - 1)) / (count - 1)));
}

/** Formulas and sources, each once, and what stands in the way where there is none. */
function laws({ arms }) {
  const said = new Map();
  for (const { name, law, reason } of arms) {
    const key = law ? `${law.formula}\n${law.source}` : reason;
    said.set(key, { law, reason, names: [...(said.get(key)?.names ?? []), name] });
  }
  return [...said.values()].map(({ law, reason, names }) => {
    const whom =
      names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");
    return h(
      "li",
      {},
      `${whom}: `,
      ...(law
        ? [h("code", {}, law.formula), `, ${law.source}`]
        : [reason.startsWith("no closed form") ? reason : `no closed form: ${reason}`]),
    );
  });
}

// In a tab that is not open nothing is asked for.
const root = document.querySelector(".curves");
const curves = new Curves(root);
new IntersectionObserver(
  (entries, observer) =>
    entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), curves.begin()),
).observe(root);
