// The document at hand: one YAML text, read and changed as a tree that keeps its comments.
import {
  isAlias,
  isCollection,
  isMap,
  isScalar as isScalarNode,
  parse,
  parseDocument,
  stringify,
} from "./vendor/yaml/index.js";

/** @import { Document, Pair } from "./vendor/yaml/index.js" */

/** @typedef {(string | number)[]} Path names of the blocks around a field, and its own */

/** @type {{ lineWidth: number, flowCollectionPadding: boolean }} */
const STYLE = { lineWidth: 0, flowCollectionPadding: false };

/**
 * `value` in one line of YAML.
 * @param {unknown} value
 */
export function inline(value) {
  return stringify(value, { ...STYLE, collectionStyle: "flow" }).trim();
}

/**
 * What a line of YAML says; throws where it says nothing.
 * @param {string} text
 * @returns {unknown}
 */
export function understand(text) {
  return parse(text);
}

export class Draft extends EventTarget {
  #text;
  /** @type {Document | null} */
  #tree = null;

  /** @param {string} text */
  constructor(text) {
    super();
    this.#text = text;
  }

  get text() {
    return this.#text;
  }

  /**
   * Take another text; `by` says who wrote it, so that they need not be told.
   * @param {string} text
   * @param {string} by
   */
  write(text, by) {
    if (text === this.#text) return;
    this.#text = text;
    this.#tree = null;
    this.dispatchEvent(new CustomEvent("change", { detail: by }));
  }

  /**
   * What the text says; undefined where it is no document of fields.
   * @returns {Record<string, any> | undefined} of JSON
   */
  get value() {
    const tree = this.#read();
    if (tree.errors.length) return undefined;
    const value = tree.contents === null ? {} : tree.toJS();
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : undefined;
  }

  /** Where the text stops making sense, if it does. */
  get error() {
    return this.#read().errors[0] ?? null;
  }

  /**
   * Set what stands at `path`, or take it out where `value` is undefined; all else stays, comments too.
   * @param {Path} path
   * @param {unknown} value
   * @param {string} by
   * @param {string[]} order the fields of its block in their order, by which a new one finds its place
   */
  set(path, value, by, order = []) {
    const tree = this.#read();
    if (value === undefined) tree.deleteIn(path);
    else {
      this.#makeWay(tree, path);
      tree.setIn(path, isScalar(value) ? value : this.#node(tree, value));
      this.#putInOrder(tree.getIn(path.slice(0, -1), true) ?? tree.contents, String(path.at(-1)), order);
    }
    this.write(tree.toString(STYLE), by);
  }

  #read() {
    return (this.#tree ??= /** @type {Document} */ (parseDocument(this.#text, { prettyErrors: false })));
  }

  /**
   * A block in one line; one that holds others has a line for each.
   * @param {Document} tree
   * @param {unknown} value
   */
  #node(tree, value) {
    const node = tree.createNode(value);
    const inner = isMap(node) ? node.items.map((field) => field.value).filter(isCollection) : [];
    for (const item of inner) item.flow = true;
    if (isCollection(node)) node.flow = !inner.length;
    return node;
  }

  /**
   * A field that was put last moves before the first of those that come after it.
   * @param {unknown} block
   * @param {string} name
   * @param {string[]} order
   */
  #putInOrder(block, name, order) {
    const items = isMap(block) ? block.items : [];
    /** @param {Pair | undefined} item */
    const nameOf = (item) => (isScalarNode(item?.key) ? item.key.value : item?.key);
    /** @param {Pair} item */
    const rank = (item) => order.indexOf(String(nameOf(item)));
    const last = items.at(-1);
    if (!last || nameOf(last) !== name || !order.includes(name)) return;
    const later = items.findIndex((item) => rank(item) > order.indexOf(name));
    if (later < 0) return;
    items.pop();
    items.splice(later, 0, last);
  }

  /**
   * What stands in the way of a field at `path` goes: `lr: 1` has no fields, and those of an alias are another's.
   * @param {Document} tree
   * @param {Path} path
   */
  #makeWay(tree, path) {
    for (let length = 1; length < path.length; length++) {
      const above = tree.getIn(path.slice(0, length), true);
      if (isAlias(above)) tree.setIn(path.slice(0, length), tree.createNode(above.toJS(tree)));
      else if (above !== undefined && !isCollection(above)) tree.deleteIn(path.slice(0, length));
    }
  }
}

/** @param {unknown} value */
function isScalar(value) {
  return value === null || typeof value !== "object";
}

/** @param {Path} path */
export function pointerOf(path) {
  return path.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}
