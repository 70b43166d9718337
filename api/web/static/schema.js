// The JSON schema of a specification, read as what a form needs: one sort for each field.

/**
 * Part of a JSON schema; `choices` stands for what of `anyOf` and the like is left without null.
 * @typedef {object} Node
 * @property {string} [$ref]
 * @property {Record<string, Node>} [$defs]
 * @property {string} [description]
 * @property {unknown} [default]
 * @property {string} [type]
 * @property {unknown[]} [enum]
 * @property {unknown} [const]
 * @property {Record<string, Node>} [properties]
 * @property {string[]} [required]
 * @property {number} [maxLength]
 * @property {Node} [items]
 * @property {Node[]} [prefixItems]
 * @property {Node[]} [anyOf]
 * @property {Node[]} [oneOf]
 * @property {Node[]} [allOf]
 * @property {Node[]} [choices]
 */

/** @typedef {"kinds" | "choice" | "block" | "map" | "text" | "scalar" | "list" | "choices" | "free"} Sort */

/**
 * What a node says, as a form needs it.
 * @typedef {object} Read
 * @property {Sort} sort
 * @property {boolean} [nullable]
 * @property {string} description
 * @property {any} [default] a value of JSON
 * @property {Node} plain
 * @property {Map<string, Node>} [kinds] of blocks of several kinds
 * @property {unknown[]} [values] to choose from
 * @property {boolean} [long] whether a text may have several lines
 * @property {string} [placeholder]
 */

export class Schema {
  /** @param {Node} root the schema of a whole specification, with its `$defs` */
  constructor(root) {
    this.root = root;
  }

  /**
   * What a node says, references followed and null taken out: {sort, nullable, description, default, ...}.
   * @param {Node} node
   * @returns {Read}
   */
  read(node) {
    const { plain, nullable } = this.#plain(node);
    const about = { nullable, description: plain.description ?? "", default: plain.default, plain };
    const kinds = this.#kinds(plain);
    if (kinds) return { ...about, sort: "kinds", kinds };
    if (plain.enum) return { ...about, sort: "choice", values: plain.enum };
    if ("const" in plain) return { ...about, sort: "choice", values: [plain.const] };
    if (plain.properties) return { ...about, sort: "block" };
    if (plain.type === "object") return { ...about, sort: "map" };
    if (plain.type === "boolean") return { ...about, sort: "choice", values: [true, false] };
    if (plain.type === "array") return { ...about, ...this.#list(plain) };
    if (plain.type === "string") return { ...about, sort: "text", long: (plain.maxLength ?? 0) > 1000 };
    if (["number", "integer"].includes(plain.type ?? "") || this.#isScalar(plain))
      return { ...about, sort: "scalar" };
    return { ...about, sort: "free" };
  }

  /**
   * The fields of a block, in the order of the schema: [name, node, whether it is required].
   * @param {Node} plain
   * @returns {[string, Node, boolean][]}
   */
  fields(plain) {
    const required = new Set(plain.required ?? []);
    return Object.entries(plain.properties ?? {}).map(([name, node]) => [name, node, required.has(name)]);
  }

  /**
   * @param {Node} node
   * @returns {Node}
   */
  #follow(node) {
    if (!node.$ref) return node;
    const { $ref, ...beside } = node;
    return { ...this.#follow(this.root.$defs?.[$ref.split("/").pop() ?? ""] ?? {}), ...beside };
  }

  /**
   * @param {Node} node
   * @returns {{ plain: Node, nullable: boolean }}
   */
  #plain(node) {
    let plain = this.#follow(node);
    let nullable = false;
    while (plain.anyOf || plain.oneOf || plain.allOf) {
      const { anyOf, oneOf, allOf, ...beside } = plain;
      const all = anyOf ?? oneOf ?? allOf ?? [];
      const choices = all.filter((choice) => choice.type !== "null");
      nullable ||= choices.length < all.length;
      if (choices.length !== 1) return { plain: { ...beside, choices }, nullable };
      plain = { ...this.#follow(choices[0]), ...beside };
    }
    return { plain, nullable };
  }

  /** @param {Node} plain */
  #kinds(plain) {
    const blocks = plain.choices?.map((choice) => this.#follow(choice)) ?? [plain];
    const kinds = new Map(blocks.map((block) => [String(block.properties?.kind?.const ?? ""), block]));
    // One of them may be without a `kind`: the optimiser of the server, when only its step size is given.
    const named =
      blocks.every((block) => block.properties) &&
      kinds.size === blocks.length &&
      !(kinds.size === 1 && kinds.has(""));
    return named ? kinds : null;
  }

  /**
   * @param {Node} plain
   * @returns {Pick<Read, "sort" | "values">}
   */
  #list(plain) {
    const items = this.read(plain.items ?? plain.prefixItems?.[0] ?? {});
    // Beside names there may be blocks, such as measures with parameters: those in a list are kept.
    const names =
      items.values ??
      items.plain.choices?.map((choice) => this.#follow(choice)).find((choice) => choice.enum)?.enum;
    if (names) return { sort: "choices", values: names };
    return ["text", "scalar"].includes(items.sort) ? { sort: "list" } : { sort: "free" };
  }

  /** @param {Node} plain */
  #isScalar(plain) {
    return (
      plain.choices?.every((choice) =>
        ["number", "integer", "string"].includes(this.#follow(choice).type ?? ""),
      ) ?? false
    );
  }
}
