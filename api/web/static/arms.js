// The table of arms: settings and metrics as columns, which are sorted, filtered, grouped, chosen, pinned and taken home.
import { armRows, estimate, figuresOf, runRows, settingsOf } from "./arms-rows.js";
import { h } from "./elements.js";
import { ABSENT, format } from "./results-table.js";
import { call } from "./service.js";
import { TabulatorFull as Tabulator } from "./vendor/tabulator/tabulator_esm.min.js";
import { remember, viewed } from "./view.js";

const root = document.getElementById("arms-table");
const experiment = root.dataset.experiment;
const at = (name) => document.getElementById(`arms-${name}`);
const addressed = experiment ? null : viewed("filter");
const FORMULA = /^[=+\-@\t\r]/;

/** Numbers by size, then text; what is absent comes last, in either direction. */
function sorter(first, second, _one, _other, _column, direction) {
  const absent = (value) => value === null || value === undefined;
  if (absent(first) || absent(second)) return absent(first) && absent(second) ? 0 : absent(first) === (direction === "asc") ? 1 : -1;
  if (typeof first === typeof second) return first < second ? -1 : first > second ? 1 : 0;
  return typeof first === "number" ? -1 : 1;
}

const safe = (value) => (typeof value === "string" && FORMULA.test(value) ? `'${value}` : value);
const text = (value) => (value === null || value === undefined ? ABSENT : String(value));

/** A heading that the keyboard reaches: its click sorts, as one on the cell around it. */
const heading = (cell) => h("button", { type: "button", class: "quiet" }, cell.getValue());

class ArmsTable {
  constructor(data) {
    this.asked = addressed ?? "";
    this.data = data;
    this.kind = viewed("rows") === "each" ? "each" : "mean";
    this.shown = viewed("columns")?.split(",") ?? null;
    this.pinned = viewed("pinned")?.split(",") ?? ["name"];
    this.figures = figuresOf(data);
    this.rows = { mean: armRows(data, this.figures), each: runRows(data, this.figures) };
    this.settings = settingsOf(this.rows.mean, data);
    this.table = new Tabulator("#arms-grid", {
      data: this.rows[this.kind],
      initialSort: (viewed("sort") ?? "").split(",").filter((one) => this.known(one.replace(/^-/, ""))).map((one) => ({ column: one.replace(/^-/, ""), dir: one.startsWith("-") ? "desc" : "asc" })).reverse(),
      columns: this.columns(),
      height: Math.min(40 + 36 * Math.max(this.rows.mean.length, 1) + 20, Math.max(320, window.innerHeight - 200)),
      layout: "fitDataFill",
      layoutColumnsOnNewData: false,
      headerSortClickElement: "header",
      placeholder: "No arm fulfils the filter.",
      groupStartOpen: false,
      groupHeader: (key, count, rows, group) => this.groupHeader(key, count, rows, group),
      columnDefaults: { headerSortTristate: true, sorter, vertAlign: "middle", minWidth: 60 },
      rowHeight: 36,
      nestedFieldSeparator: false,
    });
    this.table.on("tableBuilt", () => this.built());
    this.table.on("dataSorted", () => root.dataset.ready !== undefined && this.remember());
    this.table.on("dataFiltered", (_filters, rows) => this.count(rows.length));
  }

  columns() {
    const name = { title: "Arm", field: "name", formatter: (cell) => h("a", { href: this.address(cell.getData()) }, cell.getValue()), maxWidth: 320, tooltip: true };
    const status = { title: "Status", field: "status", formatter: (cell) => h("span", { class: "badge", "data-status": cell.getValue() }, cell.getValue()) };
    const settings = (paths, visible) => paths.map((path) => ({ title: path, field: path, visible, formatter: (cell) => text(cell.getValue()) }));
    const figures = this.figures.map((figure, place) => ({ ...this.figure(figure), visible: place < 4 || figure.field === "megabytes_sent" }));
    const several = experiment ? [] : [{ title: "Experiment", field: "experiment", maxWidth: 260, formatter: (cell) => h("a", { href: `/experiments/${cell.getData().id}` }, cell.getValue()), tooltip: true }];
    const seeds = { title: this.kind === "each" ? "Seed" : "Seeds", field: "seeds", hozAlign: "right", headerHozAlign: "right" };
    const columns = [name, ...several, status, seeds, ...settings(this.settings.telling, true), ...figures, ...settings(this.settings.others, false)];
    this.usual = columns.filter(({ visible }) => visible !== false).map(({ field }) => field);
    const viewedAs = columns.map((column) => ({ ...column, visible: (this.shown ?? this.usual).includes(column.field), frozen: this.pinned.includes(column.field), accessorDownload: safe, titleFormatter: heading }));
    // Pinned columns stand first, or others would pass below them.
    return [...viewedAs.filter(({ frozen }) => frozen), ...viewedAs.filter(({ frozen }) => !frozen)];
  }

  /** True of the field of a column. */
  known(field) {
    return ["name", "status", "seeds", "experiment", ...this.settings.telling, ...this.settings.others].includes(field) || this.figures.some((figure) => figure.field === field);
  }

  /** Put the view of the table into the address. */
  remember() {
    const columns = this.table.getColumns();
    const fields = (chosen) => columns.filter(chosen).map((column) => column.getField());
    const [shown, pinned] = [fields((column) => column.isVisible()), fields((column) => column.getDefinition().frozen)];
    const usual = new Set(this.usual);
    remember({
      filter: this.asked,
      sort: this.table.getSorters().map(({ field, dir }) => (dir === "desc" ? "-" : "") + field).reverse().join(","),
      rows: this.kind === "each" ? "each" : null,
      group: at("group").value,
      columns: shown.length === usual.size && shown.every((field) => usual.has(field)) ? null : shown.join(","),
      pinned: String(pinned) === "name" ? null : pinned.join(","),
    });
  }

  figure({ field, title, metric }) {
    return {
      title, field, hozAlign: "right", headerHozAlign: "right",
      formatter: (cell) => {
        const half = cell.getData()[`${field}±`];
        return format(cell.getValue(), metric) + (half === null || half === undefined ? "" : ` ± ${format(half, metric)}`);
      },
    };
  }

  address(row) {
    return row.run ? `/runs/${row.run}` : `/experiments/${row.id}#results`;
  }

  built() {
    this.count(this.rows[this.kind].length);
    // A grid may contain groups of rows, not what scrolls them.
    root.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
    root.querySelector(".tabulator-table").removeAttribute("role");
    at("download").disabled = false;
    at("download").addEventListener("click", () => this.table.download("csv", "arms.csv"));
    const paths = [...(experiment ? [] : ["experiment"]), "status", ...this.settings.varying];
    at("group").append(...paths.map((path) => h("option", { value: path }, path)));
    if (paths.includes(viewed("group"))) this.group((at("group").value = viewed("group")));
    at("seeds").value = this.kind;
    at("group").addEventListener("change", () => {
      this.group(at("group").value);
      this.remember();
    });
    at("seeds").addEventListener("change", () => this.show(at("seeds").value));
    let waiting;
    at("filter").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(at("filter").value.trim()), 200);
    });
    root.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.filter(at("filter").value.trim());
    });
    at("columns").append(...this.table.getColumns().map((column) => this.choice(column)));
    root.dataset.ready = "";
    if (experiment && viewed("filter")) {
      at("filter").value = viewed("filter");
      this.filter(at("filter").value.trim());
    }
  }

  choice(column) {
    const { title, visible, frozen } = column.getDefinition();
    const shown = h("input", { type: "checkbox", checked: visible !== false, onchange: () => this.toggle(column, shown.checked) });
    const pinned = h("input", { type: "checkbox", checked: frozen === true, "aria-label": `Pin ${title}`, onchange: () => this.pin(column.getField(), pinned.checked) });
    return h("div", { class: "choice" }, h("label", {}, shown, title), h("label", {}, pinned, "pin"));
  }

  toggle(column, shown) {
    if (shown) column.show();
    else column.hide();
    this.remember();
  }

  async pin(field, frozen) {
    const column = this.table.getColumn(field);
    await column.updateDefinition({ frozen, visible: column.isVisible() });
    if (frozen) this.table.moveColumn(field, this.table.getColumns()[0].getField(), false);
    this.remember();
  }

  async show(kind) {
    this.kind = kind;
    const seeds = this.table.getColumn("seeds");
    await seeds.updateDefinition({ title: kind === "each" ? "Seed" : "Seeds", visible: seeds.isVisible() });
    await this.table.replaceData(this.rows[kind]);
    this.count(this.table.getDataCount("active"));
    this.remember();
  }

  /** Groups have the mean and the interval over all their runs. */
  group(path) {
    const value = (row) => text(row[path]);
    this.grouped = path;
    this.table.setGroupBy(path ? value : false);
  }

  groupHeader(key, count, rows, group) {
    group.getElement().setAttribute("role", "row");
    const told = this.figures.slice(0, 2).map(({ field, title, metric }) => {
      const found = estimate(rows.flatMap((row) => row.figures[field]), this.data.quantiles);
      return found && `${title} ${format(found.mean, metric)}${found.half === null ? "" : ` ± ${format(found.half, metric)}`}`;
    });
    return h("span", { role: "gridcell" }, `${this.grouped} = ${key} (${count}): ${told.filter(Boolean).join("; ")}`);
  }

  async filter(words) {
    if (words === this.asked) return;
    this.asked = words;
    this.remember();
    // The service filters where not all arms are here.
    if (!experiment && (this.data.more || addressed)) return location.reload();
    at("flaw").textContent = "";
    at("filter").removeAttribute("aria-invalid");
    if (!words) return this.table.clearFilter();
    try {
      const found = await call("GET", `/arms/matching?${new URLSearchParams({ filter: words, ...(experiment ? { experiment } : {}) })}`);
      if (this.asked !== words) return;
      const kept = new Set(found);
      this.table.setFilter((row) => kept.has(row.key));
    } catch (error) {
      if (this.asked !== words) return;
      at("flaw").textContent = error.errors?.[0]?.detail ?? error.message;
      at("filter").setAttribute("aria-invalid", "true");
    }
  }

  count(number) {
    const all = this.rows[this.kind].length;
    const words = this.kind === "each" ? "runs" : "arms";
    const newest = this.data.more ? ", the newest; a filter finds others" : "";
    at("count").textContent = `${number.toLocaleString("en")} of ${all.toLocaleString("en")} ${words}${newest}. ± is half of the 95 % confidence interval of the mean over seeds.`;
  }
}

async function load() {
  try {
    if (addressed) at("filter").value = addressed;
    new ArmsTable(await call("GET", `/arms/rows?${new URLSearchParams({ ...(experiment ? { experiment } : {}), ...(addressed ? { filter: addressed } : {}) })}`));
  } catch (error) {
    at("count").textContent = "";
    at("flaw").textContent = error.errors?.[0]?.detail ?? error.message;
  }
}

// In the page of an experiment, once its tab is open: hidden, a table has no width.
const panel = root.closest("[role=tabpanel]");
if (panel) new IntersectionObserver((entries, observer) => entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), load())).observe(panel);
else load();
