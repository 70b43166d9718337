// Fields of the form by sort. Each shows what the document says, or else the default, and writes what is typed as it is typed.
import { inline, pointerOf, understand } from "./document.js";
import { h, help } from "./elements.js";
import { wordsOf } from "./service.js";

/** @import { Path } from "./document.js" */
/** @import { Form } from "./form.js" */
/** @import { Read } from "./schema.js" */

/** @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Control */

/**
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function text(form, path, read, required, value) {
  if (value !== undefined && value !== null && typeof value !== "string")
    return free(form, path, read, required, value);
  const control = read.long ? h("textarea", { rows: 2 }) : h("input", { type: "text" });
  control.value = value ?? "";
  return field(form, path, read, required, control, () => control.value || undefined);
}

/**
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function scalar(form, path, read, required, value) {
  if (value !== null && typeof value === "object") return free(form, path, read, required, value);
  const control = h("input", {
    type: "text",
    inputmode: "decimal",
    spellcheck: "false",
    autocomplete: "off",
  });
  control.value = value === undefined || value === null ? "" : inline(value);
  return field(form, path, read, required, control, () => meaning(control.value));
}

/**
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function choice(form, path, read, required, value) {
  const written = (read.values ?? []).map((item) => inline(item));
  const chosen = value === undefined || value === null ? "" : inline(value);
  if (chosen && !written.includes(chosen)) written.push(chosen);
  const none =
    required && chosen ? [] : [h("option", { value: "" }, required ? "select" : defaultOf(read) || "none")];
  const control = h(
    "select",
    {},
    ...none,
    ...written.map((item) => h("option", { value: item, selected: item === chosen }, item)),
  );
  return field(form, path, read, required, control, () => meaning(control.value));
}

/**
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function list(form, path, read, required, value) {
  const isFlat = Array.isArray(value) && value.every((item) => item === null || typeof item !== "object");
  if (value !== undefined && value !== null && !isFlat) return free(form, path, read, required, value);
  const control = h("input", { type: "text", spellcheck: "false", autocomplete: "off" });
  control.value = value ? unbracketed(value) : "";
  const placeholder =
    Array.isArray(read.default) && read.default.length ? `default: ${unbracketed(read.default)}` : "";
  return field(form, path, { ...read, placeholder }, required, control, () =>
    control.value.trim() ? understand(`[${control.value}]`) : undefined,
  );
}

/**
 * Any number of a few words.
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function choices(form, path, read, required, value) {
  const given = value ?? read.default ?? [];
  if (!Array.isArray(given)) return free(form, path, read, required, value);
  const pointer = pointerOf(path);
  const flaw = h("p", { class: "flaw", hidden: true });
  const known = /** @type {string[]} */ (read.values ?? []);
  const boxes = known.map((name) =>
    h("input", {
      type: "checkbox",
      id: `f${pointer}/${name}`,
      value: name,
      checked: given.includes(name),
      onchange: write,
    }),
  );
  function write() {
    const foreign = given.filter((/** @type {string} */ name) => !known.includes(name));
    form.set(path, [...foreign, ...boxes.filter((box) => box.checked).map((box) => box.value)]);
  }
  const labels = boxes.map((box) => h("label", { class: "box", for: box.id }, box, box.value));
  const legend = h("legend", {}, String(path.at(-1)));
  const group = h(
    "fieldset",
    { class: "field wide" },
    legend,
    flaw,
    help(read.description),
    h("div", { class: "boxes" }, ...labels),
  );
  return form.place(path, group, boxes[0], flaw);
}

/**
 * What has no field of its own, as YAML.
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {any} value of JSON
 */
export function free(form, path, read, required, value) {
  const control = h("textarea", { rows: 2, spellcheck: "false" });
  control.value = value === undefined || value === null ? "" : inline(value);
  const described = { ...read, description: `${read.description} As YAML.`.trim() };
  return field(form, path, described, required, control, () => meaning(control.value), "field wide");
}

/**
 * A map from what is swept to its values, a row for each.
 * @param {Form} form
 * @param {Path} path
 * @param {Record<string, unknown> | undefined} value
 */
export function rows(form, path, value) {
  const table = h("div", { class: "rows", oninput: write });
  const list = `paths${pointerOf(path)}`;
  const paths = h("datalist", { id: list });
  function suggest() {
    const known = [...form.root.querySelectorAll("[id^='f/']")].map((element) =>
      element.id.slice(2).replaceAll("/", "."),
    );
    paths.replaceChildren(...[...new Set(known)].map((name) => h("option", { value: name })));
  }
  function write() {
    const map = new Map();
    for (const row of table.children) {
      const [first, second] = row.querySelectorAll("input");
      const [name, values] = [first.value.trim(), second.value.trim()];
      for (const input of [first, second]) refuse(input, "");
      if (!name && !values) continue;
      if (!name) refuse(first, `${values}: which field has these values?`);
      else if (map.has(name)) refuse(first, `${name} stands in two rows: put all its values into one`);
      else if (!values) refuse(second, `${name} needs at least one value`);
      else
        map.set(
          name,
          reading(second, () => understand(`[${values}]`), `values of ${name}: `),
        );
    }
    if (!table.querySelector(":invalid")) form.set(path, map.size ? Object.fromEntries(map) : undefined);
  }
  /** @param {HTMLElement} row */
  function remove(row) {
    row.remove();
    table.dispatchEvent(new Event("input", { bubbles: true }));
  }
  function add(name = "", values = "") {
    const first = h("input", {
      "aria-label": "Field to sweep, as a dotted path",
      list,
      placeholder: "local.lr",
      value: name,
      spellcheck: "false",
      onfocus: suggest,
    });
    const second = h("input", {
      "aria-label": `Values of ${name || "the field"}`,
      placeholder: "0.01, 0.1, 1",
      value: values,
      spellcheck: "false",
    });
    const row = h(
      "div",
      { class: "row" },
      first,
      second,
      h("button", { type: "button", class: "quiet", onclick: () => remove(row) }, "Remove"),
    );
    table.append(row);
    return first;
  }
  for (const [name, values] of Object.entries(value ?? {}))
    add(name, Array.isArray(values) ? unbracketed(values) : inline(values));
  const more = h("button", { type: "button", onclick: () => add().focus() }, "Add a field to sweep");
  return [paths, table, more];
}

/**
 * @param {Form} form
 * @param {Path} path
 * @param {Read} read
 * @param {boolean} required
 * @param {Control} control
 * @param {() => unknown} meant what is written in the control
 */
function field(form, path, read, required, control, meant, style = "field") {
  const id = `f${pointerOf(path)}`;
  const flaw = h("p", { class: "flaw", hidden: true, id: `${id}-flaw` });
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-help ${id}-flaw`);
  if (required) control.setAttribute("aria-required", "true");
  if (!(control instanceof HTMLSelectElement)) control.placeholder = read.placeholder ?? defaultOf(read);
  control.addEventListener("input", () => {
    const value = reading(control, meant, "invalid value: ");
    if (control.validity.valid) form.set(path, value);
  });
  const label = h(
    "label",
    { for: id },
    String(path.at(-1)),
    required ? h("span", { class: "muted" }, " required") : "",
  );
  const words = help(read.description, { id: `${id}-help` });
  return form.place(path, h("div", { class: style }, label, control, flaw, words), control, flaw);
}

/**
 * What `read` makes of what `control` holds; what it cannot read is an error of the control, and the document stays as it is.
 * @param {Control} control
 * @param {() => unknown} read
 * @param {string} beginning
 */
function reading(control, read, beginning) {
  refuse(control, "");
  try {
    return read();
  } catch (error) {
    return refuse(control, beginning + wordsOf(error).split("\n")[0]);
  }
}

/**
 * The form's errors are those of its controls, until these are read or drawn anew.
 * @param {Control} control
 * @param {string} detail
 */
function refuse(control, detail) {
  control.setCustomValidity(detail);
  if (detail) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/** @param {string} written */
function meaning(written) {
  return written.trim() === "" ? undefined : understand(written);
}

/** @param {Read} read */
function defaultOf(read) {
  return [undefined, null, ""].includes(read.default) ? "" : `default: ${inline(read.default)}`;
}

/** @param {unknown[]} values */
function unbracketed(values) {
  return inline(values).slice(1, -1);
}
