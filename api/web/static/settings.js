// Metrics against settings: importance, parallel coordinates, points with intervals, and a heat map. What is selected here is drawn in the curves, and the other way round.
import { armRows, figureOf, figuresOf, meansOf, withDeviation } from "./arms-rows.js";
import { axis, marks, onTheme, padded, short, strokeOf, theme } from "./axes.js";
import { find, h, prose } from "./elements.js";
import { isShare } from "./results-table.js";
import { call, wordsOf } from "./service.js";
import { hiddenArms, hideArms, remember, viewed } from "./view.js";

/** @import { ArmColumns } from "../types/answers" */
/** @import { Figure, Row } from "./arms-rows.js" */
/** @import { ChartEvent, ECharts } from "./vendor/echarts/echarts.esm.min.js" */

/**
 * @typedef {object} Fields
 * @property {HTMLSelectElement} of
 * @property {HTMLSelectElement} across
 * @property {HTMLSelectElement} heatx
 * @property {HTMLSelectElement} heaty
 * @property {HTMLInputElement} select
 */

/** @typedef {{ place: number[], members: Row[], counted: Row[], faint: boolean, mean: number }} Cell of the heat map; its mean is over the arms that are counted */
/** @typedef {string | number | boolean} Level value of a setting */

const SHADES = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const MOST_AXES = 8;
const NAMED = 3;
const FEW = 8;
/** Of more numbers than these a heat map shows groups. */
const MOST_COLUMNS = 16;
/** Pixels of a digit in a cell or at an axis, and of a line of them. */
const DIGIT_PX = 7;
const LINE_PX = 14;
const ABSENT = "none";

/**
 * Loaded with the first charts.
 * @type {typeof import("./vendor/echarts/echarts.esm.min.js") | null}
 */
let echarts = null;

/** @type {(values: Level[]) => values is number[]} */
const numeric = (values) => values.every((value) => typeof value === "number");
/**
 * The values of a setting, in order.
 * @param {Row[]} rows
 * @param {string} path
 * @returns {Level[]}
 */
const levels = (rows, path) => {
  const found = [...new Set(rows.map((row) => row[path] ?? ABSENT))];
  return numeric(found)
    ? found.sort((one, other) => one - other)
    : found.sort((one, other) => String(one).localeCompare(String(other), "en", { numeric: true }));
};
/**
 * True of numbers that a logarithmic axis spreads better: positive ones over more than a decade.
 * @type {(values: Level[]) => boolean}
 */
const wide = (values) => numeric(values) && values[0] > 0 && values[values.length - 1] >= 10 * values[0];

/**
 * The columns or rows of a heat map: each value, or of many numbers eight groups of neighbours that are equally wide, on a logarithmic scale for those
 * that need one. `names` stand at the axis, `ranges` say what is in each, and `of` gives the place of a value.
 * @param {Level[]} values
 * @returns {{ names: string[], ranges: string[], of: (value: Level) => number }}
 */
function groupsOf(values) {
  if (values.length <= MOST_COLUMNS || !numeric(values)) {
    const names = values.map(String);
    return { names, ranges: names, of: (value) => values.indexOf(value) };
  }
  const [scale, back] = wide(values) ? [Math.log, Math.exp] : [Number, Number];
  const [low, high] = [scale(values[0]), scale(values[values.length - 1])];
  const edges = Array.from({ length: FEW + 1 }, (_, at) =>
    short(Number(back(low + (at * (high - low)) / FEW).toPrecision(2))),
  );
  return {
    names: edges.slice(0, -1).map((edge) => `≥ ${edge}`),
    ranges: edges.slice(0, -1).map((edge, at) => `${edge} to ${edges[at + 1]}`),
    of: (value) => Math.min(FEW - 1, Math.floor((FEW * (scale(Number(value)) - low)) / (high - low))),
  };
}

/**
 * Marks of an axis at the values themselves, where they are few.
 * @type {(values: number[]) => number[] | null}
 */
const placesOf = (values) => (values.length <= FEW ? values : null);

class Settings {
  /** @type {Figure[]} */
  figures = [];
  /** @type {Row[]} */
  rows = [];
  /** @type {string[]} settings that tell arms apart */
  paths = [];
  /** @type {ArmColumns["importance"]} */
  importance = {};
  /** Settings of the heat map. */
  heat = ["", ""];
  loading = false;
  /** What is drawn, of the arms that have it. */
  figure = { field: "", title: "", metric: "" };
  scale = 1;
  /** @type {Row[]} */
  known = [];
  /** @type {Cell[]} */
  cells = [];
  /** @type {Omit<Cell, "mean">[]} cells of the latest heat map, whose means were asked for */
  asked = [];
  hidden = hiddenArms();
  /** @type {Map<string, ECharts>} */
  charts = new Map();

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.colours = theme(root);
    const form = find(root, "form", HTMLFormElement);
    this.fields = /** @type {Fields} */ (/** @type {unknown} */ (form.elements));
    this.status = find(root, "[role=status]");
    const { of, across, heatx, heaty } = this.fields;
    for (const field of [of, across, heatx, heaty]) field.addEventListener("change", () => this.changed());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.find(this.fields.select.value.trim());
    });
    find(root, "[data-all]").addEventListener("click", () => this.select(null));
    document.addEventListener("fedq:hidden", ({ detail }) => {
      this.hidden = detail;
      this.draw();
    });
    onTheme(() => this.draw());
    document.addEventListener("fedq:moved", () => this.visible && this.load());
    new ResizeObserver(() => {
      for (const chart of this.charts.values()) chart.resize();
    }).observe(root);
  }

  get visible() {
    return this.root.clientWidth > 0;
  }

  /** Ask for the arms with their settings and figures. */
  async load() {
    if (this.loading) return;
    this.loading = true;
    try {
      /** @type {[ArmColumns, typeof import("./vendor/echarts/echarts.esm.min.js")]} */
      const [data, module] = await Promise.all([
        call("GET", `/arms/rows?${new URLSearchParams({ experiment: this.root.dataset.experiment ?? "" })}`),
        import("./vendor/echarts/echarts.esm.min.js"),
      ]);
      echarts = module;
      this.figures = figuresOf(data);
      this.rows = armRows(data, this.figures);
      this.paths = data.telling;
      this.importance = data.importance;
      this.offer();
      await this.draw();
      this.root.dataset.ready = "";
    } catch (error) {
      this.status.textContent = wordsOf(error);
    } finally {
      this.loading = false;
    }
  }

  /** Fill the choices, as the address says or with the most important settings. */
  offer() {
    const { of, across, heatx, heaty } = this.fields;
    /** @type {(field: HTMLSelectElement, values: [string, string][], usual?: string) => void} */
    const fill = (field, values, usual) => {
      const wanted = field.value || (viewed(field.name) ?? "");
      field.replaceChildren(...values.map(([value, words]) => h("option", { value }, words)));
      field.value = values.some(([value]) => value === wanted) ? wanted : (usual ?? values[0]?.[0] ?? "");
    };
    fill(
      of,
      this.figures.map(({ field, title }) => [field, title]),
      this.figures.find(({ field }) => field.endsWith(".final"))?.field,
    );
    const ranked = (this.importance[of.value] ?? []).map(({ path }) => path);
    /** @type {[string, string][]} */
    const paths = this.paths.map((path) => [path, path]);
    fill(across, paths, ranked[0]);
    fill(heatx, paths, ranked[0]);
    fill(heaty, paths, ranked[1] ?? ranked[0]);
    this.heat = [heatx.value, heaty.value];
  }

  changed() {
    const { across, heatx, heaty, of } = this.fields;
    // A setting that is chosen for both axes changes places with the other one.
    if (heatx.value === heaty.value)
      [heatx.value, heaty.value] =
        heatx.value === this.heat[0] ? [this.heat[1], heaty.value] : [heatx.value, this.heat[0]];
    this.heat = [heatx.value, heaty.value];
    remember({ of: of.value, across: across.value, heatx: heatx.value, heaty: heaty.value });
    this.draw();
  }

  /**
   * Select arms by number, for all charts and the curves; null: all.
   * @param {number[] | null} arms
   */
  select(arms) {
    const wanted = arms && new Set(arms);
    hideArms(new Set(wanted ? this.rows.map(({ arm }) => arm).filter((arm) => !wanted.has(arm)) : []));
  }

  /**
   * Select the arms that fulfil a condition.
   * @param {string} words
   */
  async find(words) {
    const flaw = find(this.root, ".flaw");
    flaw.textContent = "";
    if (!words) return this.select(null);
    try {
      const { experiment = "" } = this.root.dataset;
      /** @type {Record<string, number[]>} */
      const found = await call("GET", `/arms/matching?${new URLSearchParams({ filter: words, experiment })}`);
      this.select(found[experiment] ?? []);
    } catch (error) {
      flaw.replaceChildren(...prose(wordsOf(error)));
    }
  }

  async draw() {
    if (!this.rows.length || !this.visible) return;
    const figure = this.figures.find(({ field }) => field === this.fields.of.value);
    find(this.root, ".charts").hidden = !this.paths.length || !figure;
    if (!this.paths.length || !figure) {
      this.status.textContent = this.paths.length
        ? "No arm has a value yet."
        : "The arms do not differ in their settings.";
      return;
    }
    this.figure = figure;
    this.scale = isShare(figure.metric) ? 100 : 1;
    this.colours = theme(this.root);
    this.known = this.rows.filter((row) => figureOf(row, figure.field) !== null);
    const shown = this.rows.filter(({ arm }) => !this.hidden.has(arm)).length;
    this.status.textContent = `${shown.toLocaleString("en")} of ${this.rows.length.toLocaleString("en")} arms selected.`;
    this.drawImportance();
    this.drawParallel();
    this.drawPoints();
    await this.drawHeat();
  }

  /**
   * The chart of this name, with listeners that `begin` adds once, and what it shows in words.
   * @param {string} name
   * @param {string} words
   * @param {(chart: ECharts) => void} begin
   */
  chart(name, words, begin) {
    const place = find(this.root, `[data-chart=${name}]`);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", words);
    const known = this.charts.get(name);
    if (known) return known;
    if (!echarts) throw new Error("Charts are drawn before their program is loaded.");
    const chart = echarts.init(place);
    this.charts.set(name, chart);
    begin(chart);
    return chart;
  }

  get tooltip() {
    const { colours } = this;
    return {
      confine: true,
      className: "chart-tip",
      backgroundColor: colours.surface,
      borderColor: colours.line,
      textStyle: { color: colours.text, fontSize: 12 },
    };
  }

  /**
   * Lines of text, as ECharts takes them without markup of users.
   * @param {string[]} lines
   */
  lines(...lines) {
    return h(
      "div",
      {},
      lines.filter(Boolean).map((line) => h("div", {}, line)),
    );
  }

  /** @param {Row} row */
  value(row) {
    return (figureOf(row, this.figure.field) ?? 0) * this.scale;
  }

  /** @param {Row} row */
  told(row) {
    const { field, metric } = this.figure;
    return withDeviation({ mean: figureOf(row, field), std: figureOf(row, `${field}±`) }, metric);
  }

  /**
   * @param {Level[]} data
   * @param {string} [name]
   * @param {number} [gap]
   */
  category(data, name, gap) {
    const { colours } = this;
    return {
      type: "category",
      data: data.map(String),
      name,
      nameLocation: "middle",
      nameGap: gap,
      nameTextStyle: { color: colours.muted, fontSize: 13 },
      axisLabel: { color: colours.muted, hideOverlap: true, width: 110, overflow: "truncate" },
      axisLine: { lineStyle: { color: colours.line } },
      axisTick: { show: false },
    };
  }

  drawImportance() {
    const { colours } = this;
    const found = this.importance[this.figure.field].slice(0, 12).reverse();
    const words = [...found]
      .reverse()
      .map(({ path, share }) => `${path} ${share === null ? "unknown" : `${Math.round(100 * share)} %`}`);
    const among = new Map(found.map((one) => [one.path, one.among ? ` (among ${one.among})` : ""]));
    const chart = this.chart("importance", `Importance of settings: ${words.join(", ")}`, (made) =>
      made.on("click", ({ name }) => {
        this.fields.across.value = name;
        this.changed();
      }),
    );
    chart.setOption({
      animation: false,
      grid: { left: 8, right: 56, top: 8, bottom: 36, outerBoundsMode: "same" },
      tooltip: {
        ...this.tooltip,
        /** @param {{ name: string, value: number | "-" }} bar */
        formatter: ({ name, value }) =>
          this.lines(
            name + (among.get(name) ?? ""),
            value === "-"
              ? "cannot be told apart from chance"
              : `decides ${value.toFixed(1)} % of which arms are the top tenth`,
          ),
      },
      xAxis: { ...axis({ min: 0, max: 100, name: "Decides the top tenth, %", gap: 24, colours }) },
      yAxis: {
        ...this.category(found.map(({ path }) => path)),
        axisLabel: {
          color: colours.text,
          width: 200,
          overflow: "truncate",
          /** @param {string} path */
          formatter: (path) => path + (among.get(path) ?? ""),
        },
      },
      series: [
        {
          type: "bar",
          data: found.map(({ share }) => (share === null ? "-" : 100 * share)),
          barMaxWidth: 22,
          itemStyle: { color: colours.accent },
          label: {
            show: true,
            position: "right",
            color: colours.text,
            /** @param {{ value: number }} bar */
            formatter: ({ value }) => `${Math.round(value)} %`,
          },
        },
      ],
    });
  }

  drawParallel() {
    const { colours, figure, hidden } = this;
    const paths = this.importance[figure.field].slice(0, MOST_AXES).map(({ path }) => path);
    const known = new Map(paths.map((path) => [path, levels(this.known, path)]));
    const numbers = paths.map((path) => numeric(known.get(path) ?? []));
    /** @type {(path: string, dim: number) => object} */
    const dimension = (path, dim) => {
      const values = known.get(path) ?? [];
      const line = {
        axisLine: { lineStyle: { color: colours.muted } },
        axisTick: { lineStyle: { color: colours.muted } },
        nameTextStyle: { color: colours.text },
      };
      if (!numeric(values))
        return {
          ...line,
          axisLabel: { color: colours.text },
          dim,
          name: path,
          type: "category",
          data: values.map(String),
        };
      const [min, max] = [values[0], values[values.length - 1]];
      const customValues = placesOf(values) ?? marks(min, max, { log: wide(values) });
      return {
        ...line,
        axisLabel: { color: colours.text, formatter: short, customValues },
        axisTick: { ...line.axisTick, customValues },
        dim,
        name: path,
        type: wide(values) ? "log" : "value",
        min,
        max,
      };
    };
    const values = this.known.map((row) => this.value(row));
    const ends = padded(Math.min(...values), Math.max(...values), false);
    const text = {
      axisLine: { lineStyle: { color: colours.muted } },
      axisLabel: { color: colours.text, formatter: short, customValues: marks(...ends) },
      axisTick: { customValues: marks(...ends) },
      nameTextStyle: { color: colours.text, fontWeight: "bold" },
    };
    const data = this.known.map((row) => ({
      value: [
        ...paths.map((path, at) => (numbers[at] ? row[path] : String(row[path] ?? ABSENT))),
        this.value(row),
      ],
      name: row.name,
      lineStyle: { opacity: hidden.has(row.arm) ? 0.05 : 0.6 },
    }));
    this.chart(
      "parallel",
      `Parallel coordinates of ${this.known.length} arms over ${paths.join(", ")} and ${figure.title}. The field Select arms does the same with the keyboard.`,
      (made) => made.on("axisareaselected", () => this.brushed(made)),
    ).setOption({
      animation: false,
      parallel: { left: 50, right: 120, top: 40, bottom: 24, parallelAxisDefault: { realtime: false } },
      parallelAxis: [
        ...paths.map(dimension),
        { ...text, dim: paths.length, name: figure.title, min: ends[0], max: ends[1] },
      ],
      tooltip: {
        ...this.tooltip,
        /** @param {ChartEvent} item */
        formatter: ({ dataIndex }) =>
          this.lines(this.known[dataIndex].name, `${figure.title} ${this.told(this.known[dataIndex])}`),
      },
      visualMap: this.shades(values, paths.length),
      series: [
        { type: "parallel", data, lineStyle: { width: 1.4 }, inactiveOpacity: 0.05, activeOpacity: 0.8 },
      ],
    });
  }

  /**
   * Select what was marked on the axes.
   * @param {ECharts} chart
   */
  brushed(chart) {
    /** @param {string} state */
    const arms = (state) =>
      chart
        .getModel()
        .getSeriesByIndex(0)
        .getRawIndicesByActiveState(state)
        .map((at) => this.known[at].arm);
    // Without a mark all are `normal`.
    this.select(arms("normal").length ? null : arms("active"));
  }

  /**
   * @param {number[]} values
   * @param {number} dimension
   */
  shades(values, dimension) {
    const { colours } = this;
    const [min, max] = [Math.min(...values), Math.max(...values)];
    return {
      type: "continuous",
      min,
      max: max > min ? max : min + 1,
      dimension,
      calculable: false,
      orient: "vertical",
      right: 0,
      top: "middle",
      itemHeight: 110,
      itemWidth: 12,
      precision: 3,
      text: [short(Number(max.toPrecision(4))), short(Number(min.toPrecision(4)))],
      textStyle: { color: colours.muted, fontSize: 11 },
      inRange: { color: SHADES },
    };
  }

  drawPoints() {
    const { colours, figure, hidden } = this;
    const path = this.fields.across.value;
    const values = levels(this.known, path);
    const [numbers, log] = [numeric(values), wide(values)];
    /** @param {Row} row */
    const place = (row) => (numbers ? Number(row[path]) : values.indexOf(row[path] ?? ABSENT));
    const points = this.known.map((row) => ({
      row,
      x: place(row),
      y: this.value(row),
      low: (figureOf(row, `${figure.field} low`) ?? figureOf(row, figure.field) ?? 0) * this.scale,
      high: (figureOf(row, `${figure.field} high`) ?? figureOf(row, figure.field) ?? 0) * this.scale,
    }));
    const ends = padded(
      ...padded(
        Math.min(...points.map(({ low }) => low)),
        Math.max(...points.map(({ high }) => high)),
        false,
      ),
      false,
    );
    const across = numeric(values)
      ? axis({
          min: padded(values[0], values[values.length - 1], log)[0],
          max: padded(values[0], values[values.length - 1], log)[1],
          log,
          name: path,
          gap: 26,
          colours,
          places: placesOf(values),
        })
      : this.category(values, path, 26);
    const vertical = axis({ min: ends[0], max: ends[1], name: figure.title, colours });
    vertical.nameGap =
      18 + DIGIT_PX * Math.max(...vertical.axisLabel.customValues.map((value) => short(value).length));
    /** @param {number} arm */
    const colour = (arm) => strokeOf(arm, colours.dark).colour;
    /** @param {number} arm */
    const opacity = (arm) => (hidden.has(arm) ? 0.12 : 0.9);
    this.chart(
      "points",
      `${figure.title} of ${points.length} arms over ${path}, with 95 % confidence intervals.`,
      (made) => made.on("click", ({ dataIndex }) => this.select([this.known[dataIndex].arm])),
    ).setOption(
      {
        animation: false,
        grid: { left: vertical.nameGap + 18, right: 16, top: 10, bottom: 48, outerBoundsMode: "none" },
        tooltip: {
          ...this.tooltip,
          /** @param {ChartEvent} item */
          formatter: ({ dataIndex }) =>
            this.lines(
              this.known[dataIndex].name,
              `${path} ${this.known[dataIndex][path] ?? ABSENT}`,
              `${figure.title} ${this.told(this.known[dataIndex])}`,
            ),
        },
        xAxis: across,
        yAxis: vertical,
        series: [
          {
            type: "custom",
            silent: true,
            data: points.map(({ x, y, low, high }) => [x, y, low, high]),
            encode: { x: 0, y: 1 },
            z: 1,
            /** @type {(item: { dataIndex: number }, api: { coord: (place: number[]) => number[] }) => object} */
            renderItem: ({ dataIndex }, { coord }) => {
              const { row, x, low, high } = points[dataIndex];
              const [[left, bottom], [, top]] = [coord([x, low]), coord([x, high])];
              return {
                type: "line",
                shape: { x1: left, x2: left, y1: bottom, y2: top },
                style: {
                  stroke: colour(row.arm),
                  lineWidth: 1.2,
                  opacity: high > low ? opacity(row.arm) : 0,
                },
              };
            },
          },
          {
            type: "scatter",
            symbolSize: 8,
            data: points.map(({ row, x, y }) => ({
              value: [x, y],
              itemStyle: { color: colour(row.arm), opacity: opacity(row.arm) },
            })),
            z: 2,
          },
        ],
      },
      { replaceMerge: ["xAxis", "yAxis"] },
    );
  }

  async drawHeat() {
    const { colours, figure, hidden, scale } = this;
    const [x, y] = [this.fields.heatx.value, this.fields.heaty.value];
    const [columns, rows] = [groupsOf(levels(this.known, x)), groupsOf(levels(this.known, y))];
    /** @type {Map<string, Row[]>} */
    const cells = new Map();
    for (const row of this.known) {
      const at = `${columns.of(row[x] ?? ABSENT)},${rows.of(row[y] ?? ABSENT)}`;
      const members = cells.get(at);
      if (members) members.push(row);
      else cells.set(at, [row]);
    }
    const asked = [...cells].map(([at, members]) => {
      const shown = members.filter(({ arm }) => !hidden.has(arm));
      return {
        place: at.split(",").map(Number),
        members,
        counted: shown.length ? shown : members,
        faint: !shown.length,
      };
    });
    this.asked = asked;
    try {
      const found = await meansOf(
        [figure.field],
        asked.map(({ counted }) => counted),
      );
      if (this.asked !== asked) return;
      this.cells = asked.flatMap((cell, at) => {
        const mean = found[at][figure.field]?.mean;
        return mean === undefined ? [] : [{ ...cell, mean: mean * scale }];
      });
    } catch (error) {
      this.status.textContent = wordsOf(error);
      return;
    }
    const means = this.cells.map(({ mean }) => mean);
    const middle = (Math.min(...means) + Math.max(...means)) / 2;
    const best = [...this.cells]
      .sort((one, other) => other.mean - one.mean)
      .slice(0, NAMED)
      .map(
        ({ place, mean }) =>
          `${short(Number(mean.toPrecision(4)))} at ${columns.ranges[place[0]]} and ${rows.ranges[place[1]]}`,
      );
    const margins = { left: 96, right: 84, top: 10, bottom: 48 };
    const chart = this.chart(
      "heat",
      `Mean ${figure.title} over ${x} and ${y}; highest ${best.join(", ")}.`,
      (made) =>
        made.on("click", ({ dataIndex }) => this.select(this.cells[dataIndex].members.map(({ arm }) => arm))),
    );
    /** @param {{ value: number[] }} cell */
    const label = ({ value }) => {
      const words = short(Number(value[2].toPrecision(4)));
      const width = (chart.getWidth() - margins.left - margins.right) / columns.names.length;
      const height = (chart.getHeight() - margins.top - margins.bottom) / rows.names.length;
      return DIGIT_PX * (words.length + 1) <= width && LINE_PX <= height ? words : "";
    };
    chart.setOption({
      animation: false,
      grid: { ...margins, outerBoundsMode: "none" },
      tooltip: {
        ...this.tooltip,
        /** @param {ChartEvent} item */
        formatter: ({ dataIndex }) => {
          const { place, members, mean } = this.cells[dataIndex];
          return this.lines(
            `${x} ${columns.ranges[place[0]]}, ${y} ${rows.ranges[place[1]]}`,
            `mean ${figure.title} ${short(Number(mean.toPrecision(5)))}`,
            `${members.length} arm${members.length > 1 ? "s" : ""}`,
          );
        },
      },
      xAxis: this.category(columns.names, x, 28),
      yAxis: {
        ...this.category(rows.names, y, 76),
        axisLabel: { color: colours.muted, width: 62, overflow: "truncate" },
      },
      visualMap: this.shades(means, 2),
      series: [
        {
          type: "heatmap",
          data: this.cells.map(({ place, mean, faint }) => ({
            value: [...place, mean],
            itemStyle: { opacity: faint ? 0.2 : 1, borderColor: colours.surface, borderWidth: 1 },
            label: { color: faint ? colours.text : mean < middle ? "#fff" : "#000" },
          })),
          label: { show: true, formatter: label, fontSize: 12, opacity: 1 },
        },
      ],
    });
  }
}

const root = find(document, ".settings");
const settings = new Settings(root);
// Hidden, a chart has no width: it is drawn when its tab is opened, with what there is then.
new IntersectionObserver(
  (entries) => entries.some((entry) => entry.isIntersecting) && settings.load(),
).observe(root);
