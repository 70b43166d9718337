// Figures of a plan, which changes while its document is written, as people read them. What is not planned on the page is written by the service: `duration`
// in fedq/results/presentation.py, `size` and `count` in api/web/rendering.py, which write the same.
const COUNT = new Intl.NumberFormat("en-GB");

/** @param {number} value */
export function number(value) {
  return COUNT.format(value);
}

/**
 * As `1.5 MB`.
 * @param {number} count
 */
export function bytes(count) {
  if (count < 1000) return `${Math.round(count)} B`;
  const names = ["kB", "MB", "GB", "TB"];
  let index = -1;
  while (index < 0 || (count >= 999.5 && index < names.length - 1)) {
    count /= 1000;
    index += 1;
  }
  return `${Number(count.toPrecision(3))} ${names[index]}`;
}

/**
 * As `2 h 5 min`.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  /** @type {[number, string][]} */
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const whole = Math.round(seconds);
  const at = units.findIndex(([size]) => whole >= size);
  const [[size, name], [smaller, smallerName]] = [units[at], units[at + 1]];
  const rest = Math.floor((whole % size) / smaller);
  return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
}
