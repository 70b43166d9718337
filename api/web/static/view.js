// The view of a page in its address, so that Back, reload and shared links keep it.

/** The view as it is now. */
let latest = location.search;
// Back and Forward move between tabs, which share one view.
addEventListener("popstate", () => {
  if (location.search !== latest) history.replaceState(history.state, "", latest + location.hash);
});

/**
 * The value of `name` in the address; null without.
 * @param {string} name
 */
export const viewed = (name) => new URLSearchParams(location.search).get(name);

/**
 * All values of `name` in the address.
 * @param {string} name
 */
export const viewedAll = (name) => new URLSearchParams(location.search).getAll(name);

/**
 * Put values into the address; null, "" and an empty list take a name out.
 * @param {Record<string, string | string[] | null | undefined>} values
 */
export function remember(values) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    address.searchParams.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one) address.searchParams.append(name, one);
    }
  }
  if (address.href !== location.href) history.replaceState(history.state, "", address);
  latest = address.search;
}

/** The arms that are hidden, by index; in the address as ranges (`0-3,7`). */
export function hiddenArms() {
  /** @type {Set<number>} */
  const hidden = new Set();
  for (const [, first, last] of (viewed("hide") ?? "").matchAll(/(\d{1,6})(?:-(\d{1,6}))?/g)) {
    for (let arm = Number(first); arm <= Math.min(Number(last ?? first), 99_999); arm++) hidden.add(arm);
  }
  return hidden;
}

/**
 * Hide these arms, on all charts of the page: each listens to `fedq:hidden`.
 * @param {Set<number>} hidden
 */
export function hideArms(hidden) {
  /** @type {[number, number][]} */
  const ranges = [];
  for (const arm of [...hidden].sort((one, other) => one - other)) {
    const range = ranges.at(-1);
    if (range && range[1] === arm - 1) range[1] = arm;
    else ranges.push([arm, arm]);
  }
  remember({ hide: ranges.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(",") });
  document.dispatchEvent(new CustomEvent("fedq:hidden", { detail: hidden }));
}
