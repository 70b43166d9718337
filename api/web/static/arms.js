// The table of arms: settings and metrics as columns, which are sorted, filtered, grouped, chosen, pinned and taken home.
import {
  armRows,
  figureOf,
  figuresOf,
  meansOf,
  otherSettings,
  runRows,
  warningOf,
  withDeviation,
} from "./arms-rows.js";
import { byId, find, h, prose } from "./elements.js";
import { ABSENT } from "./results-table.js";
import { call, wordsOf } from "./service.js";
import { remember, viewed } from "./view.js";

/** @import { CellComponent, ColumnComponent, ColumnDefinition, GroupComponent, RowComponent } from "./vendor/tabulator/tabulator_esm.min.js" */
/** @import { ArmColumns, GroupMeans } from "../types/answers" */
/** @import { Figure, Row } from "./arms-rows.js" */

/** @typedef {"mean" | "each"} Kind rows of arms, or of runs */
/** @typedef {ColumnDefinition & { field: string }} Column */

const root = byId("arms-table");
const experiment = root.dataset.experiment;
/**
 * The element of the table's controls with this name.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} name
 * @param {new () => T} [type]
 */
const at = (name, type) => byId(`arms-${name}`, type);
const filterField = at("filter", HTMLInputElement);
const groupField = at("group", HTMLSelectElement);
const seedsField = at("seeds", HTMLSelectElement);
const addressed = experiment ? null : viewed("filter");
const FORMULA = /^[=+\-@\t\r]/;
/** Pixels above and below the visible rows that are drawn, too. */
const BUFFER = 180;
/** Figures of a group in its heading. */
const MOST_MEANS = 2;

/**
 * Numbers by size, then text; what is absent comes last, in either direction.
 * @param {unknown} first
 * @param {unknown} second
 * @param {RowComponent} _one
 * @param {RowComponent} _other
 * @param {ColumnComponent} _column
 * @param {"asc" | "desc"} direction
 */
function sorter(first, second, _one, _other, _column, direction) {
  /** @param {unknown} value */
  const absent = (value) => value === null || value === undefined;
  if (absent(first) || absent(second))
    return absent(first) && absent(second) ? 0 : absent(first) === (direction === "asc") ? 1 : -1;
  if (typeof first === typeof second) return first < second ? -1 : first > second ? 1 : 0;
  return typeof first === "number" ? -1 : 1;
}

/** @param {unknown} value */
const safe = (value) => (typeof value === "string" && FORMULA.test(value) ? `'${value}` : value);
/** @param {unknown} value */
const text = (value) => (value === null || value === undefined ? ABSENT : String(value));

/**
 * A value for a file. The table copies rows without the settings that all of them share.
 * @type {(value: unknown, data: unknown, type: string, options: object, column?: ColumnComponent, row?: RowComponent) => unknown}
 */
const downloaded = (_value, _data, _type, _options, column, row) =>
  safe(row?.getData()[column?.getField() ?? ""]);

/**
 * A heading that the keyboard reaches: its click sorts, as one on the cell around it.
 * @param {CellComponent} cell
 */
const heading = (cell) => h("button", { type: "button", class: "quiet" }, cell.getValue());

/**
 * The row of a cell.
 * @param {CellComponent} cell
 * @returns {Row}
 */
const dataOf = (cell) => /** @type {Row} */ (cell.getData());

/**
 * The direction of a column in the address.
 * @param {string} written
 * @returns {"asc" | "desc"}
 */
const descending = (written) => (written.startsWith("-") ? "desc" : "asc");

class ArmsTable {
  /** @type {Partial<Record<Kind, Row[]>>} */
  rows = {};
  grouped = "";
  /** @type {Map<string, Promise<string>>} means of the groups, in words, by value */
  means = new Map();
  /** @type {{ groups: Row[][], answer: Promise<GroupMeans[]> } | null} groups that are asked for next */
  batch = null;
  /** Columns by field. */
  definitions = new Map(/** @type {[string, Column][]} */ ([]));
  /** @type {string[]} fields that are shown at first */
  usual = [];
  /** @type {Set<string>} */
  shown = new Set();
  /** @type {Set<string>} */
  pinned = new Set();

  /**
   * @param {ArmColumns} data
   * @param {typeof import("./vendor/tabulator/tabulator_esm.min.js").TabulatorFull} Tabulator
   */
  constructor(data, Tabulator) {
    this.asked = addressed ?? "";
    this.data = data;
    /** @type {Kind} */
    this.kind = viewed("rows") === "each" ? "each" : "mean";
    this.figures = figuresOf(data);
    this.define();
    const sorted = (viewed("sort") ?? "")
      .split(",")
      .map((one) => ({ column: one.replace(/^-/, ""), dir: descending(one) }))
      .filter(({ column }) => this.definitions.has(column));
    // Columns that are not shown are made when they are chosen: each takes a cell in every row.
    /** @param {string} field */
    const wanted = (field) => this.shown.has(field) || sorted.some(({ column }) => column === field);
    this.table = new Tabulator("#arms-grid", {
      data: this.rowsOf(this.kind),
      initialSort: sorted.reverse(),
      columns: this.order()
        .filter(wanted)
        .map((field) => this.definition(field)),
      height: Math.min(
        40 + 36 * Math.max(data.arms.name.length, 1) + 20,
        Math.max(320, window.innerHeight - 200),
      ),
      layout: "fitDataFill",
      layoutColumnsOnNewData: false,
      headerSortClickElement: "header",
      placeholder: "No arm fulfils the filter.",
      groupStartOpen: false,
      // @ts-expect-error Its types know text only; it takes elements, too.
      groupHeader: (key, count, rows, group) => this.groupHeader(String(key), count, rows, group),
      columnDefaults: {
        headerSortTristate: true,
        sorter,
        vertAlign: "middle",
        minWidth: 60,
        resizable: "header",
      },
      renderVerticalBuffer: BUFFER,
      rowHeight: 36,
      nestedFieldSeparator: false,
    });
    this.table.on("tableBuilt", () => this.built());
    this.table.on("dataSorted", () => root.dataset.ready !== undefined && this.remember());
    this.table.on("dataFiltered", (_filters, rows) => {
      this.means.clear();
      this.tell(rows.length);
    });
  }

  /** Describe all columns by field, and choose those that are shown and pinned at first. */
  define() {
    /** @type {Column} */
    const name = {
      title: "Arm",
      field: "name",
      formatter: (cell) => h("a", { href: this.address(dataOf(cell)) }, cell.getValue()),
      maxWidth: 320,
      tooltip: true,
    };
    /** @type {Column} */
    const status = { title: "Status", field: "status", formatter: (cell) => this.status(cell) };
    /** @type {(paths: string[]) => Column[]} */
    const settings = (paths) =>
      paths.map((path) => ({ title: path, field: path, formatter: (cell) => text(cell.getValue()) }));
    /** @type {Column[]} */
    const several = experiment
      ? []
      : [
          {
            title: "Experiment",
            field: "experiment",
            maxWidth: 260,
            formatter: (cell) => h("a", { href: `/experiments/${dataOf(cell).id}` }, cell.getValue()),
            tooltip: true,
          },
        ];
    /** @type {Column} */
    const seeds = {
      title: this.kind === "each" ? "Seed" : "Seeds",
      field: "seeds",
      hozAlign: "right",
      headerHozAlign: "right",
    };
    const columns = [
      name,
      ...several,
      status,
      seeds,
      ...settings(this.data.telling),
      ...this.figures.map((figure) => this.figure(figure)),
      ...settings(otherSettings(this.data)),
    ];
    this.definitions = new Map(columns.map((column) => [column.field, column]));
    const figures = this.figures
      .filter(({ field }, place) => place < 4 || field === "megabytes_sent")
      .map(({ field }) => field);
    this.usual = [
      "name",
      ...several.map(({ field }) => field),
      "status",
      "seeds",
      ...this.data.telling,
      ...figures,
    ];
    /** @param {string[]} fields */
    const known = (fields) => fields.filter((field) => this.definitions.has(field));
    this.shown = new Set(known(viewed("columns")?.split(",") ?? this.usual));
    this.pinned = new Set(known(viewed("pinned")?.split(",") ?? ["name"]));
  }

  /**
   * The status of a row, with a mark where its runs are of little use.
   * @param {CellComponent} cell
   */
  status(cell) {
    const found = h(
      "span",
      {},
      h("span", { class: "badge", "data-status": cell.getValue() }, cell.getValue()),
    );
    found.append(...this.mark([dataOf(cell)]));
    return found;
  }

  /** @param {Pick<Row, "first" | "end">[]} rows */
  mark(rows) {
    const words = warningOf(this.data, rows);
    return words
      ? [
          " ",
          h("span", { class: "caution", role: "img", "aria-label": `Warning: ${words}`, title: words }, "⚠"),
        ]
      : [];
  }

  /** All fields in the order of their columns; pinned ones stand first, or others would pass below them. */
  order() {
    const fields = [...this.definitions.keys()];
    return [
      ...fields.filter((field) => this.pinned.has(field)),
      ...fields.filter((field) => !this.pinned.has(field)),
    ];
  }

  /**
   * The description of a column.
   * @param {string} field
   */
  described(field) {
    const found = this.definitions.get(field);
    if (!found) throw new Error(`The table has no column ${field}.`);
    return found;
  }

  /**
   * The definition of a column as it is now.
   * @param {string} field
   */
  definition(field) {
    return {
      ...this.described(field),
      visible: this.shown.has(field),
      frozen: this.pinned.has(field),
      accessorDownload: downloaded,
      titleFormatter: heading,
    };
  }

  /**
   * The column of a field; undefined of one that was never shown.
   * @param {string} field
   */
  column(field) {
    return this.table.getColumns().find((column) => column.getField() === field);
  }

  /** @param {Kind} kind */
  rowsOf(kind) {
    return (this.rows[kind] ??= (kind === "each" ? runRows : armRows)(this.data, this.figures));
  }

  /** Number of all rows. */
  get count() {
    return this.kind === "each" ? this.data.runs.id.length : this.data.arms.name.length;
  }

  /** Put the view of the table into the address. */
  remember() {
    /** @param {Set<string>} chosen */
    const listed = (chosen) =>
      this.order()
        .filter((field) => chosen.has(field))
        .join(",");
    const usual = this.shown.size === this.usual.length && this.usual.every((field) => this.shown.has(field));
    remember({
      filter: this.asked,
      sort: this.table
        .getSorters()
        .map(({ field, dir }) => (dir === "desc" ? "-" : "") + field)
        .reverse()
        .join(","),
      rows: this.kind === "each" ? "each" : null,
      group: groupField.value,
      columns: usual ? null : listed(this.shown),
      pinned: listed(this.pinned) === "name" ? null : listed(this.pinned),
    });
  }

  /**
   * The definition of a column of figures.
   * @param {Figure} figure
   * @returns {Column}
   */
  figure({ field, title, metric }) {
    return {
      title,
      field,
      hozAlign: "right",
      headerHozAlign: "right",
      formatter: (cell) =>
        withDeviation(
          { mean: figureOf(dataOf(cell), field), std: figureOf(dataOf(cell), `${field}±`) },
          metric,
        ),
    };
  }

  /** @param {Row} row */
  address(row) {
    return row.run ? `/runs/${row.run}` : `/experiments/${row.id}#results`;
  }

  built() {
    this.tell(this.count);
    // A grid may contain groups of rows, not what scrolls them.
    find(root, ".tabulator-tableholder").setAttribute("role", "rowgroup");
    find(root, ".tabulator-table").removeAttribute("role");
    at("download", HTMLButtonElement).disabled = false;
    // Its own choice of rows is that of the display, which has groups, and no rows of those that are closed.
    at("download").addEventListener("click", () => {
      // @ts-expect-error Its types lack functions that choose rows.
      this.table.download("csv", "arms.csv", {}, () => this.table.getRows("active"));
    });
    const paths = [...(experiment ? [] : ["experiment"]), "status", ...Object.keys(this.data.settings)];
    groupField.append(...paths.map((path) => h("option", { value: path }, path)));
    const group = viewed("group") ?? "";
    if (paths.includes(group)) this.group((groupField.value = group));
    seedsField.value = this.kind;
    groupField.addEventListener("change", () => {
      this.group(groupField.value);
      this.remember();
    });
    seedsField.addEventListener("change", () => this.show(seedsField.value === "each" ? "each" : "mean"));
    /** @type {ReturnType<typeof setTimeout>} */
    let waiting;
    filterField.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(filterField.value.trim()), 200);
    });
    find(root, "form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.filter(filterField.value.trim());
    });
    at("columns").append(...this.order().map((field) => this.choice(field)));
    root.dataset.ready = "";
    const filter = viewed("filter");
    if (experiment && filter) {
      filterField.value = filter;
      this.filter(filterField.value.trim());
    }
  }

  /** @param {string} field */
  choice(field) {
    const { title } = this.described(field);
    const shown = h("input", {
      type: "checkbox",
      checked: this.shown.has(field),
      onchange: () => this.toggle(field, shown.checked),
    });
    const pinned = h("input", {
      type: "checkbox",
      checked: this.pinned.has(field),
      "aria-label": `Pin ${title}`,
      onchange: () => this.pin(field, pinned.checked),
    });
    return h("div", { class: "choice" }, h("label", {}, shown, title), h("label", {}, pinned, "pin"));
  }

  /**
   * @param {string} field
   * @param {boolean} shown
   */
  async toggle(field, shown) {
    if (shown) this.shown.add(field);
    else this.shown.delete(field);
    const column = this.column(field);
    if (!column) await this.add(field);
    else if (shown) column.show();
    else column.hide();
    this.remember();
  }

  /**
   * Make the column of a field, in its place.
   * @param {string} field
   */
  add(field) {
    const order = this.order();
    const following = new Set(order.slice(order.indexOf(field) + 1));
    const next = this.table.getColumns().find((column) => following.has(column.getField()));
    return this.table.addColumn(this.definition(field), next !== undefined, next?.getField());
  }

  /**
   * @param {string} field
   * @param {boolean} frozen
   */
  async pin(field, frozen) {
    if (frozen) this.pinned.add(field);
    else this.pinned.delete(field);
    const column = this.column(field);
    if (column) {
      await column.updateDefinition({
        title: this.described(field).title,
        frozen,
        visible: column.isVisible(),
      });
      if (frozen) this.table.moveColumn(field, this.table.getColumns()[0].getField(), false);
    }
    this.remember();
  }

  /** @param {Kind} kind */
  async show(kind) {
    this.kind = kind;
    this.means.clear();
    this.described("seeds").title = kind === "each" ? "Seed" : "Seeds";
    const seeds = this.column("seeds");
    if (seeds)
      await seeds.updateDefinition({
        title: this.described("seeds").title,
        visible: seeds.isVisible(),
      });
    await this.table.replaceData(this.rowsOf(kind));
    this.tell(this.table.getDataCount("active"));
    this.remember();
  }

  /**
   * Groups have the mean and the deviation over all their runs.
   * @param {string} path
   */
  group(path) {
    /** @param {Row} row */
    const value = (row) => text(row[path]);
    this.grouped = path;
    this.means.clear();
    // @ts-expect-error Its types lack `false`, for no groups.
    this.table.setGroupBy(path ? value : false);
  }

  /**
   * @param {string} key
   * @param {number} count
   * @param {Row[]} rows
   * @param {GroupComponent} group
   */
  groupHeader(key, count, rows, group) {
    group.getElement().setAttribute("role", "row");
    const means = h("span");
    this.meansOf(key, rows).then((words) => (means.textContent = words));
    return h(
      "span",
      { role: "gridcell" },
      `${this.grouped} = ${key} (${count}): `,
      means,
      ...this.mark(rows),
    );
  }

  /**
   * The means of a group in words, of the first two figures. Groups that are drawn together are asked for together.
   * @param {string} key
   * @param {Row[]} rows
   */
  meansOf(key, rows) {
    const known = this.means.get(key);
    if (known) return known;
    // Runs of one arm may have several statuses, and means are over all runs of an arm.
    if (this.kind === "each" && this.grouped === "status") return Promise.resolve("");
    const batch = (this.batch ??= this.newBatch());
    const at = batch.groups.push(rows) - 1;
    const words = batch.answer.then((found) => this.inWords(found[at]), wordsOf);
    this.means.set(key, words);
    return words;
  }

  newBatch() {
    /** @type {Row[][]} */
    const groups = [];
    const figures = this.figures.slice(0, MOST_MEANS).map(({ field }) => field);
    const answer = Promise.resolve().then(() => {
      this.batch = null;
      return meansOf(figures, groups);
    });
    return { groups, answer };
  }

  /** @param {GroupMeans} means */
  inWords(means) {
    return this.figures
      .slice(0, MOST_MEANS)
      .map(({ field, title, metric }) => {
        const found = means[field];
        return found && `${title} ${withDeviation(found, metric)}`;
      })
      .filter(Boolean)
      .join("; ");
  }

  /** @param {string} words */
  async filter(words) {
    if (words === this.asked) return;
    this.asked = words;
    this.remember();
    // The service filters where not all arms are here.
    if (!experiment && (this.data.more || addressed)) return location.reload();
    at("flaw").textContent = "";
    filterField.removeAttribute("aria-invalid");
    if (!words) return this.table.clearFilter(false);
    try {
      /** @type {Record<string, number[]>} */
      const found = await call(
        "GET",
        `/arms/matching?${new URLSearchParams({ filter: words, ...(experiment ? { experiment } : {}) })}`,
      );
      if (this.asked !== words) return;
      const kept = new Map(Object.entries(found).map(([id, arms]) => [id, new Set(arms)]));
      this.table.setFilter((/** @type {Row} */ { id, arm }) => kept.get(id)?.has(arm) ?? false);
    } catch (error) {
      if (this.asked !== words) return;
      at("flaw").replaceChildren(...prose(wordsOf(error)));
      filterField.setAttribute("aria-invalid", "true");
    }
  }

  /** @param {number} number */
  tell(number) {
    const words = this.kind === "each" ? "runs" : "arms";
    const newest = this.data.more ? ", the newest; a filter finds others" : "";
    at("count").textContent =
      `${number.toLocaleString("en")} of ${this.count.toLocaleString("en")} ${words}${newest}. Mean ± sample standard deviation over seeds.`;
  }
}

async function load() {
  try {
    if (addressed) filterField.value = addressed;
    const query = new URLSearchParams({
      ...(experiment ? { experiment } : {}),
      ...(addressed ? { filter: addressed } : {}),
    });
    // The script of the table is loaded while the service reads the arms.
    /** @type {[ArmColumns, typeof import("./vendor/tabulator/tabulator_esm.min.js")]} */
    const [data, { TabulatorFull }] = await Promise.all([
      call("GET", `/arms/rows?${query}`),
      import("./vendor/tabulator/tabulator_esm.min.js"),
    ]);
    new ArmsTable(data, TabulatorFull);
  } catch (error) {
    at("count").textContent = "";
    at("flaw").replaceChildren(...prose(wordsOf(error)));
  }
}

// In the page of an experiment, once its tab is open: hidden, a table has no width.
const panel = root.closest("[role=tabpanel]");
if (panel)
  new IntersectionObserver(
    (entries, observer) => entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), load()),
  ).observe(panel);
else load();
