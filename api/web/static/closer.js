// Curves that are looked at closely: which rounds were left out of what is drawn, and curves with these put in.

/**
 * The first and last round between two places on an axis, and one drawn point further; null where no round was left out there.
 * `list` is what lies along the axis: a name of a list of each of `curves`.
 */
export function leftOut(curves, list, [from, to]) {
  let [first, last, some] = [Infinity, 0, false];
  for (const { rounds, [list]: places } of curves) {
    if (!rounds.length) continue;
    const start = Math.max(
      0,
      places.findLastIndex((place) => place <= from),
    );
    const beyond = places.findIndex((place) => place >= to);
    const end = beyond < 0 ? rounds.length - 1 : beyond;
    first = Math.min(first, rounds[start]);
    last = Math.max(last, rounds[end]);
    some ||= rounds[end] - rounds[start] > end - start;
  }
  return some ? [first, last] : null;
}

/** The curve with its points from round `first` to `last` replaced by those of `finer`. */
export function joined(curve, finer, [first, last]) {
  const before = curve.rounds.filter((round) => round < first).length;
  const after = curve.rounds.filter((round) => round <= last).length;
  return Object.fromEntries(
    Object.entries(curve).map(([name, list]) => [
      name,
      [...list.slice(0, before), ...finer[name], ...list.slice(after)],
    ]),
  );
}
