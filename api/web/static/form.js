// The form: a field for each field of the schema, over the document at hand. It changes one place of the document at a time.
import { inline, pointerOf } from "./document.js";
import { h, help, prose } from "./elements.js";
import * as fields from "./fields.js";

export class Form {
  #open = new Map();
  #left = new Map();
  #kindOf = new Map();
  #orders = new Map();
  #places = new Map();
  #flaws = [];

  /**
   * @param {HTMLElement} root where it is drawn
   * @param {import("./schema.js").Schema} schema
   * @param {Map<string, string>} sources publications, by `path:kind`
   * @param {import("./document.js").Draft} draft
   */
  constructor(root, schema, sources, draft) {
    Object.assign(this, { root, schema, sources, draft });
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
      if (!this.#places.has(pointer)) continue;
      this.#places.get(pointer).element.replaceWith(place.element);
      this.#places.set(pointer, place);
    }
    this.mark(this.#flaws);
    if (focused && this.root.contains(document.getElementById(focused)))
      document.getElementById(focused).focus();
  }

  /** Forget what is drawn, for a document that others have written. */
  clear() {
    this.root.replaceChildren();
    this.#places.clear();
  }

  /** Flaws of what was typed here and cannot be read, which the document therefore lacks. */
  get unread() {
    return [...this.#places].flatMap(([pointer, place]) =>
      unreadIn(place).map((control) => ({ pointer, detail: control.validationMessage, isUnread: true })),
    );
  }

  /** Show flaws at their fields, or at the block that lacks them. */
  mark(flaws) {
    this.#flaws = flaws;
    for (const place of this.#places.values()) place.tell([]);
    const told = new Map();
    for (const flaw of flaws) {
      const pointer = this.#nearest(flaw.pointer);
      if (pointer !== null) told.set(pointer, [...(told.get(pointer) ?? []), flaw.detail]);
    }
    for (const [pointer, details] of told) this.#places.get(pointer).tell(details);
  }

  /** Go to the field at a pointer, opening the blocks around it. */
  reveal(pointer) {
    const place = this.#places.get(this.#nearest(pointer));
    if (!place) return;
    for (let above = place.element; above; above = above.parentElement.closest("details"))
      if (above.tagName === "DETAILS") above.open = true;
    (unreadIn(place)[0] ?? place.control).focus();
    place.element.scrollIntoView({ block: "nearest" });
  }

  /** Where what stands at `path` begins to be shown: `tell` shows what is wrong there. */
  place(path, element, control, flaw) {
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

  #nearest(pointer) {
    for (let at = pointer; ; at = at.slice(0, at.lastIndexOf("/"))) {
      if (this.#places.has(at)) return at;
      if (!at.includes("/")) return null;
    }
  }

  #fields(path, plain, value, kind = undefined) {
    const known = this.schema.fields(plain);
    const names = new Set(known.map(([name]) => name));
    this.#orders.set(pointerOf(path), ["kind", ...names]);
    // Within a block, single fields come first: blocks take whole lines.
    if (path.length) known.sort((one, other) => this.#isBlock(one[1]) - this.#isBlock(other[1]));
    const foreign = Object.keys(value ?? {}).filter((name) => !names.has(name) && name !== "kind");
    return [
      ...known
        .filter(([name]) => name !== "kind")
        .map(([name, node, required]) => this.#field([...path, name], node, required, value?.[name], kind)),
      ...foreign.map((name) =>
        fields.free(this, [...path, name], { description: "Unknown field." }, false, value[name]),
      ),
    ];
  }

  #field(path, node, required, value, kind) {
    const read = this.schema.read(node);
    if (kind !== undefined) this.#kindOf.set(pointerOf(path.slice(0, -1)), kind);
    const isBlock =
      value === undefined || value === null || (typeof value === "object" && !Array.isArray(value));
    if (this.#isBlock(node) && isBlock) return this.#block(path, read, required, value ?? undefined);
    return (fields[read.sort] ?? fields.free)(this, path, read, required, value);
  }

  #isBlock(node) {
    return ["block", "kinds", "map"].includes(this.schema.read(node).sort);
  }

  #block(path, read, required, value) {
    const pointer = pointerOf(path);
    const id = `f${pointer}`;
    const flaw = h("p", { class: "flaw", hidden: true });
    const brief = h("code", { class: "brief" }, value === undefined ? absent(read) : short(inline(value)));
    const summary = h(
      "summary",
      { id },
      h("span", { class: "name" }, path.at(-1)),
      required ? h("span", { class: "muted" }, " required ") : " ",
      brief,
    );
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

  #group(path, plain, value, kind = undefined) {
    const drawn = this.#fields(path, plain, value, kind);
    return drawn.length ? [h("div", { class: "fields" }, ...drawn)] : [];
  }

  #kinds(path, read, required, value) {
    const kind = value === undefined ? undefined : (value.kind ?? "");
    const described = read.kinds.get(kind ?? read.default?.kind);
    const id = `f${pointerOf(path)}/kind`;
    const flaw = h("p", { class: "flaw", hidden: true, id: `${id}-flaw` });
    const options = [...read.kinds.keys()].map((name) => [name, name || "same kind, with another step size"]);
    if (kind !== undefined && !read.kinds.has(kind)) options.push([kind, `${kind} (unknown)`]);
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

  /** Another kind: fields of the same names stay, and those it had when it was chosen before come back. */
  #choose(path, read, before, kind) {
    const pointer = pointerOf(path);
    const old = path.reduce((block, name) => block?.[name], this.draft.value);
    if (old) this.#left.set(`${pointer}:${before}`, old);
    if (kind === "\0") this.#write(path, undefined);
    else {
      const names = new Set(this.schema.fields(read.kinds.get(kind) ?? {}).map(([name]) => name));
      const kept = Object.entries(old ?? {}).filter(([name]) => names.has(name) && name !== "kind");
      const { kind: _, ...earlier } = this.#left.get(`${pointer}:${kind}`) ?? {};
      this.#write(path, { ...(kind ? { kind } : {}), ...earlier, ...Object.fromEntries(kept) });
    }
    this.draw();
  }

  /** Set a field, or take it out where `value` is undefined; a block that says its kind by default says it from now on. */
  set(path, value) {
    const above = path.slice(0, -1);
    const block = above.reduce((inner, name) => inner?.[name], this.draft.value);
    const isThere = block !== undefined && block !== null;
    if (isThere) this.#write(path, value);
    else if (value !== undefined) {
      const kind = this.#kindOf.get(pointerOf(above));
      this.#write(above, { ...(kind ? { kind } : {}), [path.at(-1)]: value });
    }
    this.#shorten(path);
  }

  #write(path, value) {
    this.draft.set(path, value, "form", this.#orders.get(pointerOf(path.slice(0, -1))));
  }

  /** The summaries around `path` say what their blocks hold now. */
  #shorten(path) {
    for (let length = 1; length < path.length; length++) {
      const place = this.#places.get(pointerOf(path.slice(0, length)));
      const block = path.slice(0, length).reduce((inner, name) => inner?.[name], this.draft.value);
      const brief = place?.element.querySelector(":scope > summary > .brief");
      if (brief && block !== undefined) brief.textContent = short(inline(block));
    }
  }
}

/** The controls of a place itself, not of those within it, that hold what cannot be read. */
function unreadIn({ element }) {
  return [...element.querySelectorAll(":scope > :invalid, :scope > .rows :invalid")];
}

function absent(read) {
  if (read.default?.kind) return `default: ${read.default.kind}`;
  return read.sort === "kinds" ? "none" : "default";
}

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
