// What is being written, kept in this browser by who writes it and the address it was begun at, so that a reload loses nothing.
import { byId } from "./elements.js";

/** @typedef {{ text: string, at: number }} Kept */

const PREFIX = `fedq-draft:${byId("desk").dataset.owner}:`;

/**
 * @param {string} address
 * @param {string} text
 */
export function keep(address, text) {
  quietly(() => localStorage.setItem(PREFIX + address, JSON.stringify({ text, at: Date.now() })));
}

/**
 * @param {string} address
 * @returns {string | null}
 */
export function recall(address) {
  return quietly(() => read(PREFIX + address)?.text) ?? null;
}

/** @param {string} address */
export function drop(address) {
  quietly(() => localStorage.removeItem(PREFIX + address));
}

/**
 * Drafts of the same owner at other addresses, newest first.
 * @param {string} address
 * @returns {({ address: string } & Kept)[]}
 */
export function others(address) {
  const found = quietly(() =>
    Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX) && key !== PREFIX + address)
      .map((key) => ({ address: key.slice(PREFIX.length), ...read(key) })),
  );
  return (found ?? []).sort((one, other) => other.at - one.at);
}

/**
 * @param {string} key
 * @returns {Kept}
 */
function read(key) {
  return JSON.parse(localStorage.getItem(key) ?? "null");
}

/**
 * Without storage, or with a full one, nothing is kept.
 * @template T
 * @param {() => T} action
 */
function quietly(action) {
  try {
    return action();
  } catch {
    return null;
  }
}
