// The JSON schema of a specification, read as what a form needs: one sort for each field.

export class Schema {
  /** @param {object} root the schema of a whole specification, with its `$defs` */
  constructor(root) {
    this.root = root;
  }

  /** What a node says, references followed and null taken out: {sort, nullable, description, default, ...}. */
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
    if (["number", "integer"].includes(plain.type) || this.#isScalar(plain))
      return { ...about, sort: "scalar" };
    return { ...about, sort: "free" };
  }

  /** The fields of a block, in the order of the schema: [name, node, whether it is required]. */
  fields(plain) {
    const required = new Set(plain.required ?? []);
    return Object.entries(plain.properties ?? {}).map(([name, node]) => [name, node, required.has(name)]);
  }

  #follow(node) {
    if (!node.$ref) return node;
    const { $ref, ...beside } = node;
    return { ...this.#follow(this.root.$defs[$ref.split("/").pop()]), ...beside };
  }

  #plain(node) {
    let plain = this.#follow(node);
    let nullable = false;
    while (plain.anyOf || plain.oneOf || plain.allOf) {
      const { anyOf, oneOf, allOf, ...beside } = plain;
      const choices = (anyOf ?? oneOf ?? allOf).filter((choice) => choice.type !== "null");
      nullable ||= choices.length < (anyOf ?? oneOf ?? allOf).length;
      if (choices.length !== 1) return { plain: { ...beside, choices }, nullable };
      plain = { ...this.#follow(choices[0]), ...beside };
    }
    return { plain, nullable };
  }

  #kinds(plain) {
    const blocks = plain.choices?.map((choice) => this.#follow(choice)) ?? [plain];
    const kinds = new Map(blocks.map((block) => [block.properties?.kind?.const ?? "", block]));
    // One of them may be without a `kind`: the optimiser of the server, when only its step size is given.
    const named =
      blocks.every((block) => block.properties) &&
      kinds.size === blocks.length &&
      !(kinds.size === 1 && kinds.has(""));
    return named ? kinds : null;
  }

  #list(plain) {
    const items = this.read(plain.items ?? plain.prefixItems?.[0] ?? {});
    // Beside names there may be blocks, such as measures with parameters: those in a list are kept.
    const names =
      items.values ??
      items.plain.choices?.map((choice) => this.#follow(choice)).find((choice) => choice.enum)?.enum;
    if (names) return { sort: "choices", values: names };
    return ["text", "scalar"].includes(items.sort) ? { sort: "list" } : { sort: "free" };
  }

  #isScalar(plain) {
    return (
      plain.choices?.every((choice) => ["number", "integer", "string"].includes(this.#follow(choice).type)) ??
      false
    );
  }
}
