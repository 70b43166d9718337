// Elements in a line: h("p", {class: "help"}, "text", child).

/** Of what precedes an item that is scrolled to. */
const MARGIN_PX = 24;

/** @param {Record<string, any>} attributes attributes by name; `on...` are listeners, false and null leave one out */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Scroll `box` sideways so that `item` is seen. `scrollIntoView` would also scroll the page, and move the place where Tab begins. */
export function bringIntoView(box, item) {
  const [outer, inner] = [box.getBoundingClientRect(), item.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right)
    box.scrollLeft += inner.left - outer.left - MARGIN_PX;
}

/** Text in which `code` stands between backticks. */
export function prose(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

const LONG = 150;

/** A description as help: of a long one its beginning, and the rest on request. */
export function help(text, attributes = {}) {
  const [first, ...rest] = text.length > LONG ? beginning(text) : [text];
  const more = rest.length
    ? h("details", {}, h("summary", {}, "more"), h("p", { class: "lines" }, ...prose(rest.join(""))))
    : "";
  return h("div", { class: "help", ...attributes }, h("p", {}, ...prose(first)), more);
}

/** The first paragraph, where that is short, or else the first sentence; and what follows. */
function beginning(text) {
  const ends = [text.indexOf("\n\n"), text.indexOf(". ") + 1, text.indexOf("; ")].filter(
    (end) => end > 0 && end <= 2 * LONG,
  );
  const end = ends[0] ?? text.length;
  return [text.slice(0, end), text.slice(end).replace(/^[;\s]+/, "")].filter(Boolean);
}
