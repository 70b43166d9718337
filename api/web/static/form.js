// The form: a field for each field of the schema, over the document at hand. It changes one place of the document at a time.
import { inline, pointerOf } from "./document.js";
import { h, help, prose } from "./elements.js";
import * as fields from "./fields.js";

/** @import { Path } from "./document.js" */
/** @import { Node, Read } from "./schema.js" */

/** @typedef {{ pointer: string, detail: string, line?: number | null, column?: number | null, isUnread?: boolean }} Flaw */
/** @typedef {{ element: HTMLElement, control: HTMLElement, tell: (details: string[]) => void }} Place where a value is shown */
/** @typedef {Record<string, any>} Block of JSON */

/** @type {Read} */
const UNKNOWN = { sort: "free", description: "Unknown field.", plain: {} };

/** What draws a field of each sort; of blocks where the document has something else. */
const FIELDS = {
  text: fields.text,
  scalar: fields.scalar,
  choice: fields.choice,
  list: fields.list,
  choices: fields.choices,
  free: fields.free,
  block: fields.free,
  kinds: fields.free,
  map: fields.free,
};

export class Form {
  /** @type {Map<string, boolean>} */
  #open = new Map();
  /** @type {Map<string, Block>} */
  #left = new Map();
  /** @type {Map<string, string>} */
  #kindOf = new Map();
  /** @type {Map<string, string[]>} */
  #orders = new Map();
  /** @type {Map<string, Place>} */
  #places = new Map();
  /** @type {Flaw[]} */
  #flaws = [];

  /**
   * @param {HTMLElement} root where it is drawn
   * @param {import("./schema.js").Schema} schema
   * @param {Map<string, string | null>} sources publications, by `path:kind`
   * @param {import("./document.js").Draft} draft
   */
  constructor(root, schema, sources, draft) {
    this.root = root;
    this.schema = schema;
    this.sources = sources;
    this.draft = draft;
  }

  /** Draw it anew; what is open stays open, the focus stays where it was, and what could not be read stays to be corrected. */
  draw() {
    const focused = document.activeElement?.id;
    const unread = [...this.#places].filter(
      ([, place]) => this.root.contains(place.element) && unreadIn(place).length,
    );
    this.#places.clear();
    const value = this.draft.value;
    this.root.replaceChildren(
      ...(value === undefined
        ? [unreadable()]
        : this.#fields([], this.schema.read(this.schema.root).plain, value)),
    );
    for (const [pointer, place] of unread) {
      const drawn = this.#places.get(pointer);
      if (!drawn) continue;
      drawn.element.replaceWith(place.element);
      this.#places.set(pointer, place);
    }
    this.mark(this.#flaws);
    const again = focused ? document.getElementById(focused) : null;
    if (again && this.root.contains(again)) again.focus();
  }

  /** Forget what is drawn, for a document that others have written. */
  clear() {
    this.root.replaceChildren();
    this.#places.clear();
  }

  /**
   * Flaws of what was typed here and cannot be read, which the document therefore lacks.
   * @returns {Flaw[]}
   */
  get unread() {
    return [...this.#places].flatMap(([pointer, place]) =>
      unreadIn(place).map((control) => ({ pointer, detail: control.validationMessage, isUnread: true })),
    );
  }

  /**
   * Show flaws at their fields, or at the block that lacks them.
   * @param {Flaw[]} flaws
   */
  mark(flaws) {
    this.#flaws = flaws;
    for (const place of this.#places.values()) place.tell([]);
    /** @type {Map<string, string[]>} */
    const told = new Map();
    for (const flaw of flaws) {
      const pointer = this.#nearest(flaw.pointer);
      if (pointer !== null) told.set(pointer, [...(told.get(pointer) ?? []), flaw.detail]);
    }
    for (const [pointer, details] of told) this.#places.get(pointer)?.tell(details);
  }

  /**
   * Go to the field at a pointer, opening the blocks around it.
   * @param {string} pointer
   */
  reveal(pointer) {
    const place = this.#places.get(this.#nearest(pointer) ?? "");
    if (!place) return;
    /** @type {HTMLElement | null | undefined} */
    let above = place.element;
    while (above) {
      if (above instanceof HTMLDetailsElement) above.open = true;
      above = above.parentElement?.closest("details");
    }
    (unreadIn(place)[0] ?? place.control).focus();
    place.element.scrollIntoView({ block: "nearest" });
  }

  /**
   * Where what stands at `path` begins to be shown: `tell` shows what is wrong there.
   * @param {Path} path
   * @param {HTMLElement} element
   * @param {HTMLElement} control
   * @param {HTMLElement} flaw
   */
  place(path, element, control, flaw) {
    /** @param {string[]} details */
    const tell = (details) => {
      flaw.replaceChildren(...prose(details.join("; ")));
      flaw.hidden = !details.length;
      element.classList.toggle("flawed", details.length > 0);
      if (control.tagName === "SUMMARY") return;
      if (details.length) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    };
    this.#places.set(pointerOf(path), { element, control, tell });
    return element;
  }

  /** @param {string} pointer */
  #nearest(pointer) {
    for (let at = pointer; ; at = at.slice(0, at.lastIndexOf("/"))) {
      if (this.#places.has(at)) return at;
      if (!at.includes("/")) return null;
    }
  }

  /**
   * @param {Path} path
   * @param {Node} plain
   * @param {Block | undefined} value
   * @param {string} [kind]
   * @returns {HTMLElement[]}
   */
  #fields(path, plain, value, kind = undefined) {
    const known = this.schema.fields(plain);
    const names = new Set(known.map(([name]) => name));
    this.#orders.set(pointerOf(path), ["kind", ...names]);
    // Within a block, single fields come first: blocks take whole lines.
    if (path.length)
      known.sort((one, other) => Number(this.#isBlock(one[1])) - Number(this.#isBlock(other[1])));
    const foreign = Object.keys(value ?? {}).filter((name) => !names.has(name) && name !== "kind");
    return [
      ...known
        .filter(([name]) => name !== "kind")
        .map(([name, node, required]) => this.#field([...path, name], node, required, value?.[name], kind)),
      ...foreign.map((name) => fields.free(this, [...path, name], UNKNOWN, false, value?.[name])),
    ];
  }

  /**
   * @param {Path} path
   * @param {Node} node
   * @param {boolean} required
   * @param {any} value of JSON
   * @param {string} [kind]
   * @returns {HTMLElement}
   */
  #field(path, node, required, value, kind) {
    const read = this.schema.read(node);
    if (kind !== undefined) this.#kindOf.set(pointerOf(path.slice(0, -1)), kind);
    const isBlock =
      value === undefined || value === null || (typeof value === "object" && !Array.isArray(value));
    if (this.#isBlock(node) && isBlock) return this.#block(path, read, required, value ?? undefined);
    return FIELDS[read.sort](this, path, read, required, value);
  }

  /** @param {Node} node */
  #isBlock(node) {
    return ["block", "kinds", "map"].includes(this.schema.read(node).sort);
  }

  /**
   * @param {Path} path
   * @param {Read} read
   * @param {boolean} required
   * @param {Block | undefined} value
   */
  #block(path, read, required, value) {
    const pointer = pointerOf(path);
    const id = `f${pointer}`;
    const flaw = h("p", { class: "flaw", hidden: true });
    const brief = h("code", { class: "brief" }, value === undefined ? absent(read) : short(inline(value)));
    const summary = h(
      "summary",
      { id },
      h("span", { class: "name" }, String(path.at(-1))),
      required ? h("span", { class: "muted" }, " required ") : " ",
      brief,
    );
    /** @type {Record<string, () => HTMLElement[]>} */
    const inside = {
      kinds: () => this.#kinds(path, read, required, value),
      map: () => fields.rows(this, path, value),
      block: () => this.#group(path, read.plain, value),
    };
    const words = read.sort === "kinds" && value ? "" : help(read.description);
    const element = h(
      "details",
      {
        class: "block",
        ontoggle: () => this.#open.set(pointer, element.open),
        open: this.#open.get(pointer) ?? (required || value !== undefined),
      },
      ...[summary, flaw, words, ...inside[read.sort]()],
    );
    return this.place(path, element, summary, flaw);
  }

  /**
   * @param {Path} path
   * @param {Node} plain
   * @param {Block | undefined} value
   * @param {string} [kind]
   */
  #group(path, plain, value, kind = undefined) {
    const drawn = this.#fields(path, plain, value, kind);
    return drawn.length ? [h("div", { class: "fields" }, ...drawn)] : [];
  }

  /**
   * @param {Path} path
   * @param {Read} read
   * @param {boolean} required
   * @param {Block | undefined} value
   */
  #kinds(path, read, required, value) {
    const kind = value === undefined ? undefined : (value.kind ?? "");
    const kinds = read.kinds ?? new Map();
    const described = kinds.get(kind ?? read.default?.kind);
    const id = `f${pointerOf(path)}/kind`;
    const flaw = h("p", { class: "flaw", hidden: true, id: `${id}-flaw` });
    const options = [...kinds.keys()].map((name) => [name, name || "same kind, with another step size"]);
    if (kind !== undefined && !kinds.has(kind)) options.push([kind, `${kind} (unknown)`]);
    const select = h(
      "select",
      {
        id,
        "aria-describedby": `${id}-help ${id}-flaw`,
        onchange: () => this.#choose(path, read, kind, select.value),
      },
      ...(required && kind !== undefined
        ? []
        : [h("option", { value: "\0", selected: kind === undefined }, required ? "select" : absent(read))]),
      ...options.map(([name, words]) => h("option", { value: name, selected: name === kind }, words)),
    );
    const source = this.sources.get(`${path.join(".")}:${kind}`);
    const words = help(described?.description ?? read.description, { id: `${id}-help` });
    if (source) words.append(h("p", {}, source));
    const label = h("label", { for: id }, "kind");
    const fieldsOfKind = described
      ? this.#group(path, described, value, kind ?? read.default?.kind)
      : this.#group(path, {}, value);
    return [
      this.place(
        [...path, "kind"],
        h("div", { class: "field choice-of-kind" }, label, select, flaw, words),
        select,
        flaw,
      ),
      ...fieldsOfKind,
    ];
  }

  /**
   * Another kind: fields of the same names stay, and those it had when it was chosen before come back.
   * @param {Path} path
   * @param {Read} read
   * @param {string | undefined} before
   * @param {string} kind
   */
  #choose(path, read, before, kind) {
    const pointer = pointerOf(path);
    const old = valueAt(this.draft.value, path);
    if (old) this.#left.set(`${pointer}:${before}`, old);
    if (kind === "\0") this.#write(path, undefined);
    else {
      const names = new Set(this.schema.fields(read.kinds?.get(kind) ?? {}).map(([name]) => name));
      const kept = Object.entries(old ?? {}).filter(([name]) => names.has(name) && name !== "kind");
      const { kind: _, ...earlier } = this.#left.get(`${pointer}:${kind}`) ?? {};
      this.#write(path, { ...(kind ? { kind } : {}), ...earlier, ...Object.fromEntries(kept) });
    }
    this.draw();
  }

  /**
   * Set a field, or take it out where `value` is undefined; a block that says its kind by default says it from now on.
   * @param {Path} path
   * @param {unknown} value
   */
  set(path, value) {
    const above = path.slice(0, -1);
    const block = valueAt(this.draft.value, above);
    const isThere = block !== undefined && block !== null;
    if (isThere) this.#write(path, value);
    else if (value !== undefined) {
      const kind = this.#kindOf.get(pointerOf(above));
      this.#write(above, { ...(kind ? { kind } : {}), [String(path.at(-1))]: value });
    }
    this.#shorten(path);
  }

  /**
   * @param {Path} path
   * @param {unknown} value
   */
  #write(path, value) {
    this.draft.set(path, value, "form", this.#orders.get(pointerOf(path.slice(0, -1))));
  }

  /**
   * The summaries around `path` say what their blocks hold now.
   * @param {Path} path
   */
  #shorten(path) {
    for (let length = 1; length < path.length; length++) {
      const place = this.#places.get(pointerOf(path.slice(0, length)));
      const block = valueAt(this.draft.value, path.slice(0, length));
      const brief = place?.element.querySelector(":scope > summary > .brief");
      if (brief && block !== undefined) brief.textContent = short(inline(block));
    }
  }
}

/**
 * The controls of a place itself, not of those within it, that hold what cannot be read.
 * @param {Place} place
 */
function unreadIn({ element }) {
  /** @type {NodeListOf<import("./fields.js").Control>} */
  const found = element.querySelectorAll(":scope > :invalid, :scope > .rows :invalid");
  return [...found];
}

/**
 * What stands at a path; undefined where nothing does.
 * @param {Block | undefined} document
 * @param {Path} path
 * @returns {any} of JSON
 */
function valueAt(document, path) {
  return path.reduce((inner, name) => inner?.[name], document);
}

/** @param {Read} read */
function absent(read) {
  if (read.default?.kind) return `default: ${read.default.kind}`;
  return read.sort === "kinds" ? "none" : "default";
}

/** @param {string} text */
function short(text) {
  return text.length > 90 ? `${text.slice(0, 88)}…` : text;
}

function unreadable() {
  return h(
    "p",
    { class: "notice warning" },
    "The YAML is not a valid mapping. Correct it in the YAML tab to use the form.",
  );
}
