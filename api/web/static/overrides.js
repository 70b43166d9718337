// The changes that make one document of another, as a preset takes them: blocks merge, null removes, anything else replaces.

/** @typedef {Record<string, unknown>} Block */

/**
 * The overrides by which `from` becomes `to`.
 * @param {Block} from
 * @param {Block} to
 */
export function overrides(from, to) {
  /** @type {Block} */
  const changes = {};
  for (const name of Object.keys(from)) if (!(name in to)) changes[name] = null;
  for (const [name, value] of Object.entries(to)) {
    const before = from[name];
    if (isBlock(before) && isBlock(value) && before.kind === value.kind) {
      const inner = overrides(before, value);
      if (Object.keys(inner).length) changes[name] = inner;
    } else if (JSON.stringify(before) !== JSON.stringify(value)) changes[name] = value;
  }
  return changes;
}

/**
 * @param {unknown} value
 * @returns {value is Block}
 */
function isBlock(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
