// Lists and matrices that a run measured: bars, and heat maps.
import { onTheme, short, strokeOf, theme } from "./axes.js";
import { h } from "./elements.js";

/** @import { ECharts } from "./vendor/echarts/echarts.esm.min.js" */

/**
 * A measure of one round; null: undefined.
 * @typedef {object} Listed
 * @property {string} name
 * @property {string} title
 * @property {string[]} axes what places, or rows and columns, stand for
 * @property {(number | null)[] | (number | null)[][]} values
 */

/** Cells of a heat map have their numbers in them up to this many columns. */
const WRITTEN = 12;
const ROOM = { left: 56, right: 16, top: 10, bottom: 44 };

/** @type {{ list: Listed, canvas: ECharts, plot: HTMLElement }[]} */
let drawn = [];
const observer = new ResizeObserver(() => drawn.forEach(({ canvas }) => canvas.resize()));
onTheme(() => drawn.forEach(show));

/**
 * Draw the lists in the `data-lists` of a section, in place of those that were drawn before.
 * @param {HTMLElement} section
 */
export async function drawLists(section) {
  /** @type {Listed[]} */
  const lists = JSON.parse(section.dataset.lists ?? "[]");
  const { init } = await import("./vendor/echarts/echarts.esm.min.js");
  observer.disconnect();
  for (const { canvas } of drawn) canvas.dispose();
  drawn = lists.map((list) => {
    const plot = h("div", { class: "plot", role: "img", "aria-label": inWords(list) });
    section.append(h("figure", {}, h("figcaption", {}, list.title), plot));
    return { list, canvas: init(plot), plot };
  });
  drawn.forEach(show);
  observer.observe(section);
}

/** @param {Listed} list */
function isMatrix({ values }) {
  return Array.isArray(values[0]);
}

/** @param {Listed} list */
function inWords(list) {
  const size = isMatrix(list) ? `${list.values.length} rows` : `${list.values.length} values`;
  return `${list.title}, by ${list.axes.join(" and ")}: ${size}. The numbers are in the file of rounds.`;
}

/** @param {{ list: Listed, canvas: ECharts, plot: HTMLElement }} drawn */
function show({ list, canvas, plot }) {
  const colours = theme(plot);
  /** @type {(name: string, length: number) => object} */
  const places = (name, length) => ({
    type: "category",
    data: [...Array(length).keys()].map(String),
    name,
    nameLocation: "middle",
    nameTextStyle: { color: colours.muted, fontSize: 13 },
    axisLabel: { color: colours.muted, hideOverlap: true },
    axisTick: { show: false },
    axisLine: { lineStyle: { color: colours.line } },
  });
  const common = {
    animation: false,
    grid: { ...ROOM, outerBoundsMode: "none" },
    textStyle: { color: colours.text },
  };
  canvas.setOption({
    ...common,
    ...(isMatrix(list)
      ? heatMap(/** @type {(number | null)[][]} */ (list.values), list.axes, places, colours)
      : bars(/** @type {(number | null)[]} */ (list.values), list.axes, places, colours)),
  });
}

/**
 * @param {(number | null)[]} values
 * @param {string[]} axes
 * @param {(name: string, length: number) => object} places
 * @param {import("./axes.js").Theme} colours
 */
function bars(values, [axis = "place"], places, colours) {
  return {
    tooltip: {
      renderMode: "richText",
      /** @param {{ dataIndex: number }} item */
      formatter: ({ dataIndex: at }) => `${axis} ${at}: ${inFigures(values[at])}`,
    },
    xAxis: { ...places(axis, values.length), nameGap: 26 },
    yAxis: {
      type: "value",
      axisLabel: { color: colours.muted, formatter: short },
      splitLine: { lineStyle: { color: colours.line } },
    },
    series: [{ type: "bar", data: values, barCategoryGap: "20%", color: strokeOf(0, colours.dark).colour }],
  };
}

/**
 * The first row is at the top.
 * @param {(number | null)[][]} rows
 * @param {string[]} axes
 * @param {(name: string, length: number) => object} places
 * @param {import("./axes.js").Theme} colours
 */
function heatMap(rows, [row = "row", column = "column"], places, colours) {
  const columns = Math.max(...rows.map(({ length }) => length));
  const cells = rows.flatMap((values, from) => values.map((value, to) => [to, from, value ?? "-"]));
  const known = rows.flat().filter((value) => value !== null);
  return {
    tooltip: {
      renderMode: "richText",
      /** @param {{ value: [number, number, number | "-"] }} item */
      formatter: ({ value: [to, from] }) => {
        const total = rows[from].reduce((sum, value) => (sum ?? 0) + (value ?? 0), 0);
        const value = rows[from][to];
        const share = value !== null && total ? `, ${short((100 * value) / total)} % of the row` : "";
        return `${row} ${from}, ${column} ${to}: ${inFigures(value)}${share}`;
      },
    },
    xAxis: { ...places(column, columns), nameGap: 26 },
    yAxis: { ...places(row, rows.length), nameGap: 38, inverse: true },
    visualMap: {
      show: false,
      min: Math.min(0, ...known),
      max: Math.max(...known, Number.MIN_VALUE),
      inRange: { color: [colours.surface, strokeOf(0, colours.dark).colour] },
    },
    series: [
      {
        type: "heatmap",
        data: cells,
        label: {
          show: columns <= WRITTEN,
          color: colours.text,
          /** @param {{ value: [number, number, number | "-"] }} item */
          formatter: ({ value: [, , value] }) => (value === "-" ? "" : short(value)),
        },
        itemStyle: { borderColor: colours.line, borderWidth: columns <= WRITTEN ? 1 : 0 },
      },
    ],
  };
}

/** @param {number | null} value */
function inFigures(value) {
  return value === null ? "undefined" : short(value);
}
