// Elements that are made, in a line: h("p", {class: "help"}, "text", child); and those of the page that are found, each of the type that it must have.

/** @typedef {string | Node | null | undefined} Child */

/** Of what precedes an item that is scrolled to. */
const MARGIN_PX = 24;

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} attributes attributes by name; `on...` are listeners, false and null leave one out
 * @param {(Child | Child[])[]} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child) element.append(child);
  return element;
}

/**
 * The element with this id; throws where there is none of the type.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @param {new () => T} [type]
 */
export function byId(id, type) {
  return ofType(document.getElementById(id), id, type);
}

/**
 * The first element in `root` that a selector names; throws where there is none of the type.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {ParentNode} root
 * @param {string} selector
 * @param {new () => T} [type]
 */
export function find(root, selector, type) {
  return ofType(root.querySelector(selector), selector, type);
}

/**
 * @template {HTMLElement} T
 * @param {Element | null} found
 * @param {string} name
 * @param {new () => T} [type]
 */
function ofType(found, name, type) {
  if (!(found instanceof (type ?? HTMLElement))) throw new Error(`The page has no ${name}.`);
  return /** @type {T} */ (found);
}

/**
 * The element that an event happened in or within, and that a selector names; null of none.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {Event} event
 * @param {string} selector
 */
export function around({ target }, selector) {
  return target instanceof Element ? /** @type {T | null} */ (target.closest(selector)) : null;
}

/**
 * Scroll `box` sideways so that `item` is seen. `scrollIntoView` would also scroll the page, and move the place where Tab begins.
 * @param {Element} box
 * @param {Element} item
 */
export function bringIntoView(box, item) {
  const [outer, inner] = [box.getBoundingClientRect(), item.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right)
    box.scrollLeft += inner.left - outer.left - MARGIN_PX;
}

/**
 * Text in which `code` stands between backticks.
 * @param {string} text
 */
export function prose(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

const LONG = 150;

/**
 * A description as help: of a long one its beginning, and the rest on request.
 * @param {string} text
 * @param {Record<string, unknown>} attributes
 */
export function help(text, attributes = {}) {
  const [first, ...rest] = text.length > LONG ? beginning(text) : [text];
  const more = rest.length
    ? h("details", {}, h("summary", {}, "more"), h("p", { class: "lines" }, ...prose(rest.join(""))))
    : "";
  return h("div", { class: "help", ...attributes }, h("p", {}, ...prose(first)), more);
}

/**
 * The first paragraph, where that is short, or else the first sentence; and what follows.
 * @param {string} text
 */
function beginning(text) {
  const ends = [text.indexOf("\n\n"), text.indexOf(". ") + 1, text.indexOf("; ")].filter(
    (end) => end > 0 && end <= 2 * LONG,
  );
  const end = ends[0] ?? text.length;
  return [text.slice(0, end), text.slice(end).replace(/^[;\s]+/, "")].filter(Boolean);
}
