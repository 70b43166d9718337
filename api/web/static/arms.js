// The table of arms: settings and metrics as columns, which are sorted, filtered, grouped, chosen, pinned and taken home.
import { h } from "./elements.js";
import { ABSENT, format, isShare } from "./results-table.js";
import { call } from "./service.js";
import { TabulatorFull as Tabulator } from "./vendor/tabulator/tabulator_esm.min.js";

const root = document.getElementById("arms-table");
const experiment = root.dataset.experiment;
const at = (name) => document.getElementById(`arms-${name}`);
const addressed = experiment ? null : new URLSearchParams(location.search).get("filter");
const FORMULA = /^[=+\-@\t\r]/;
const FIRST = 5; // Values of a run before those of its metrics.

/** Mean of values and half of its 95 % confidence interval; null of no values, and of one without interval. */
function estimate(values, quantiles) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  if (known.length === 1) return { mean, half: null };
  const spread = Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1));
  const quantile = quantiles[Math.min(known.length - 1, quantiles.length) - 1];
  return { mean, half: (quantile * spread) / Math.sqrt(known.length) };
}

/** The columns of figures: where a run has them, and what they are called. */
function figuresOf({ metrics }) {
  const named = metrics.flatMap(({ name, better }, place) => {
    const words = name.replaceAll("_", " ") + (isShare(name) ? " (%)" : "");
    const final = { field: `${name}.final`, title: `${words}, final`, metric: name, place: FIRST + 2 * place + 1 };
    return better ? [{ field: `${name}.best`, title: `${words}, best`, metric: name, place: FIRST + 2 * place }, final] : [final];
  });
  return [...named, { field: "megabytes_sent", title: "MB sent", metric: "", place: 3 }, { field: "seconds", title: "Seconds", metric: "", place: 4 }];
}

/** What all rows of an arm have: its settings, those of its experiment included, and its place. */
function place({ experiments }, arm) {
  const { name, settings } = experiments[arm.experiment];
  return { ...settings, ...arm.settings, key: `${arm.experiment}:${arm.arm}`, experiment: name, id: arm.experiment, name: arm.name, figures: {} };
}

/** A row for each arm, with means over its seeds. */
function armRows(data, figures) {
  return data.arms.map((arm) => {
    const row = { ...place(data, arm), status: arm.status, seeds: arm.seeds.length };
    for (const { field, place } of figures) {
      row.figures[field] = arm.seeds.map((seed) => seed[place]);
      const found = estimate(row.figures[field], data.quantiles);
      row[field] = found?.mean ?? null;
      row[`${field}±`] = found?.half ?? null;
    }
    return row;
  });
}

/** A row for each run. */
function runRows(data, figures) {
  return data.arms.flatMap((arm) =>
    arm.seeds.map((seed) => {
      const row = { ...place(data, arm), run: seed[0], seeds: seed[1], status: seed[2] };
      for (const { field, place } of figures) {
        row[field] = seed[place];
        row.figures[field] = [seed[place]];
      }
      return row;
    }),
  );
}

/** Settings in which the arms differ, those of them that tell arms apart, and all but these. */
function settingsOf(rows, { arms, experiments }) {
  const paths = new Set(Object.values(experiments).flatMap(({ settings }) => Object.keys(settings)));
  for (const { settings } of arms) for (const path of Object.keys(settings)) paths.add(path);
  const all = [...paths].sort();
  const varying = all.filter((path) => rows.some((row) => row[path] !== rows[0][path]));
  // An option that only some kinds have, with one value, says no more than the kind.
  const telling = varying.filter((path) => {
    const known = new Set(rows.map((row) => row[path]).filter((value) => value !== undefined));
    return known.size > 1 || typeof [...known][0] === "number";
  });
  return { telling, others: all.filter((path) => !telling.includes(path)), varying };
}

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
    this.figures = figuresOf(data).filter(({ place }) => data.arms.some((arm) => arm.seeds.some((seed) => seed[place] !== null)));
    this.rows = { mean: armRows(data, this.figures), each: runRows(data, this.figures) };
    this.settings = settingsOf(this.rows.mean, data);
    this.table = new Tabulator("#arms-grid", {
      data: this.rows.mean,
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
    this.table.on("dataFiltered", (_filters, rows) => this.count(rows.length));
  }

  columns() {
    const name = { title: "Arm", field: "name", frozen: true, formatter: (cell) => h("a", { href: this.address(cell.getData()) }, cell.getValue()), maxWidth: 320, tooltip: true };
    const status = { title: "Status", field: "status", formatter: (cell) => h("span", { class: "badge", "data-status": cell.getValue() }, cell.getValue()) };
    const settings = (paths, visible) => paths.map((path) => ({ title: path, field: path, visible, formatter: (cell) => text(cell.getValue()) }));
    const figures = this.figures.map((figure, place) => ({ ...this.figure(figure), visible: place < 4 || figure.field === "megabytes_sent" }));
    const several = experiment ? [] : [{ title: "Experiment", field: "experiment", maxWidth: 260, formatter: (cell) => h("a", { href: `/experiments/${cell.getData().id}` }, cell.getValue()), tooltip: true }];
    return [name, ...several, status, { title: "Seeds", field: "seeds", hozAlign: "right", headerHozAlign: "right" }, ...settings(this.settings.telling, true), ...figures, ...settings(this.settings.others, false)].map((column) => ({ ...column, accessorDownload: safe, titleFormatter: heading }));
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
    this.count(this.rows.mean.length);
    // A grid may contain groups of rows, not what scrolls them.
    root.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
    root.querySelector(".tabulator-table").removeAttribute("role");
    at("download").disabled = false;
    at("download").addEventListener("click", () => this.table.download("csv", "arms.csv"));
    const paths = [...(experiment ? [] : ["experiment"]), "status", ...this.settings.varying];
    at("group").append(...paths.map((path) => h("option", { value: path }, path)));
    at("group").addEventListener("change", () => this.group(at("group").value));
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
  }

  choice(column) {
    const { title, visible, frozen } = column.getDefinition();
    const shown = h("input", { type: "checkbox", checked: visible !== false, onchange: () => (shown.checked ? column.show() : column.hide()) });
    const pinned = h("input", { type: "checkbox", checked: frozen === true, "aria-label": `Pin ${title}`, onchange: () => this.pin(column.getField(), pinned.checked) });
    return h("div", { class: "choice" }, h("label", {}, shown, title), h("label", {}, pinned, "pin"));
  }

  async pin(field, frozen) {
    // Pinned columns stand first, or others would pass below them.
    const column = this.table.getColumn(field);
    await column.updateDefinition({ frozen, visible: column.isVisible() });
    if (frozen) this.table.moveColumn(field, this.table.getColumns()[0].getField(), false);
  }

  async show(kind) {
    this.kind = kind;
    const seeds = this.table.getColumn("seeds");
    await seeds.updateDefinition({ title: kind === "each" ? "Seed" : "Seeds", visible: seeds.isVisible() });
    await this.table.replaceData(this.rows[kind]);
    this.count(this.table.getDataCount("active"));
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
    // The service filters where not all arms are here.
    if (this.data.more || addressed) return location.assign(words ? `?${new URLSearchParams({ filter: words })}` : location.pathname);
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
    const all = this.rows[this.kind ?? "mean"].length;
    const words = this.kind === "each" ? "runs" : "arms";
    const newest = this.data.more ? ", the newest; a filter finds others" : "";
    at("count").textContent = `${number.toLocaleString("en")} of ${all.toLocaleString("en")} ${words}${newest}. ± is half of the 95 % confidence interval of the mean over seeds.`;
  }
}

async function load() {
  try {
    if (addressed) at("filter").value = addressed;
    new ArmsTable(await call("GET", `/arms/rows${experiment ? `?experiment=${experiment}` : location.search}`));
  } catch (error) {
    at("count").textContent = "";
    at("flaw").textContent = error.errors?.[0]?.detail ?? error.message;
  }
}

// In the page of an experiment, once its tab is open: hidden, a table has no width.
const panel = root.closest("[role=tabpanel]");
if (panel) new IntersectionObserver((entries, observer) => entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), load())).observe(panel);
else load();
