// Fields of the form by sort. Each shows what the document says, or else the default, and writes what is typed as it is typed.
import { inline, pointerOf, understand } from "./document.js";
import { h, help } from "./elements.js";

export function text(form, path, read, required, value) {
  if (value !== undefined && value !== null && typeof value !== "string") return free(form, path, read, required, value);
  const control = read.long ? h("textarea", { rows: 2 }) : h("input", { type: "text" });
  control.value = value ?? "";
  return field(form, path, read, required, control, () => control.value || undefined);
}

export function scalar(form, path, read, required, value) {
  if (value !== null && typeof value === "object") return free(form, path, read, required, value);
  const control = h("input", { type: "text", inputmode: "decimal", spellcheck: "false", autocomplete: "off" });
  control.value = value === undefined || value === null ? "" : inline(value);
  return field(form, path, read, required, control, () => meaning(control.value));
}

export function choice(form, path, read, required, value) {
  const written = read.values.map((item) => inline(item));
  const chosen = value === undefined || value === null ? "" : inline(value);
  if (chosen && !written.includes(chosen)) written.push(chosen);
  const none = required && chosen ? [] : [h("option", { value: "" }, required ? "select" : defaultOf(read) || "none")];
  const control = h("select", {}, ...none, ...written.map((item) => h("option", { value: item, selected: item === chosen }, item)));
  return field(form, path, read, required, control, () => meaning(control.value));
}

export function list(form, path, read, required, value) {
  const isFlat = Array.isArray(value) && value.every((item) => item === null || typeof item !== "object");
  if (value !== undefined && value !== null && !isFlat) return free(form, path, read, required, value);
  const control = h("input", { type: "text", spellcheck: "false", autocomplete: "off" });
  control.value = value ? unbracketed(value) : "";
  const placeholder = Array.isArray(read.default) && read.default.length ? `default: ${unbracketed(read.default)}` : "";
  return field(form, path, { ...read, placeholder }, required, control, () => (control.value.trim() ? understand(`[${control.value}]`) : undefined));
}

/** Any number of a few words. */
export function choices(form, path, read, required, value) {
  const given = value ?? read.default ?? [];
  if (!Array.isArray(given)) return free(form, path, read, required, value);
  const pointer = pointerOf(path);
  const flaw = h("p", { class: "flaw", hidden: true });
  const boxes = read.values.map((name) => h("input", { type: "checkbox", id: `f${pointer}/${name}`, value: name, checked: given.includes(name), onchange: write }));
  function write() {
    const foreign = given.filter((name) => !read.values.includes(name));
    form.set(path, [...foreign, ...boxes.filter((box) => box.checked).map((box) => box.value)]);
  }
  const labels = boxes.map((box) => h("label", { class: "box", for: box.id }, box, box.value));
  const legend = h("legend", {}, path.at(-1));
  const group = h("fieldset", { class: "field wide" }, legend, flaw, help(read.description), h("div", { class: "boxes" }, ...labels));
  return form.place(path, group, boxes[0], flaw);
}

/** What has no field of its own, as YAML. */
export function free(form, path, read, required, value) {
  const control = h("textarea", { rows: 2, spellcheck: "false" });
  control.value = value === undefined || value === null ? "" : inline(value);
  const described = { ...read, description: `${read.description} As YAML.`.trim() };
  return field(form, path, described, required, control, () => meaning(control.value), "field wide");
}

/** A map from what is swept to its values, a row for each. */
export function rows(form, path, value) {
  const table = h("div", { class: "rows" });
  const list = `paths${pointerOf(path)}`;
  const paths = h("datalist", { id: list });
  function suggest() {
    const known = [...form.root.querySelectorAll("[id^='f/']")].map((element) => element.id.slice(2).replaceAll("/", "."));
    paths.replaceChildren(...[...new Set(known)].map((name) => h("option", { value: name })));
  }
  function write() {
    const entries = [...table.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value.trim()));
    const isMeant = entries.filter(([name, values]) => name && values);
    try {
      const map = Object.fromEntries(isMeant.map(([name, values]) => [name, understand(`[${values}]`)]));
      form.set(path, isMeant.length ? map : undefined);
      table.removeAttribute("aria-invalid");
    } catch {
      table.setAttribute("aria-invalid", "true");
    }
  }
  function add(name = "", values = "") {
    const remove = h("button", { type: "button", class: "quiet", onclick: () => (row.remove(), write()) }, "Remove");
    const first = h("input", { "aria-label": "Field to sweep, as a dotted path", list, placeholder: "local.lr", value: name, spellcheck: "false", oninput: write, onfocus: suggest });
    const second = h("input", { "aria-label": `Values of ${name || "the field"}`, placeholder: "0.01, 0.1, 1", value: values, spellcheck: "false", oninput: write });
    const row = h("div", { class: "row" }, first, second, remove);
    table.append(row);
    return first;
  }
  for (const [name, values] of Object.entries(value ?? {})) add(name, Array.isArray(values) ? unbracketed(values) : inline(values));
  const more = h("button", { type: "button", onclick: () => add().focus() }, "Add a field to sweep");
  return [paths, table, more];
}

function field(form, path, read, required, control, meant, style = "field") {
  const id = `f${pointerOf(path)}`;
  const flaw = h("p", { class: "flaw", hidden: true, id: `${id}-flaw` });
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-help ${id}-flaw`);
  if (required) control.setAttribute("aria-required", "true");
  if (control.tagName !== "SELECT") control.placeholder = read.placeholder ?? defaultOf(read);
  control.addEventListener("input", () => {
    try {
      form.set(path, meant());
    } catch (error) {
      flaw.textContent = `invalid value: ${error.message.split("\n")[0]}`;
      flaw.hidden = false;
    }
  });
  const label = h("label", { for: id }, path.at(-1), required ? h("span", { class: "muted" }, " required") : "");
  const words = help(read.description, { id: `${id}-help` });
  return form.place(path, h("div", { class: style }, label, control, flaw, words), control, flaw);
}

function meaning(written) {
  return written.trim() === "" ? undefined : understand(written);
}

function defaultOf(read) {
  return [undefined, null, ""].includes(read.default) ? "" : `default: ${inline(read.default)}`;
}

function unbracketed(values) {
  return inline(values).slice(1, -1);
}
