async ([numbers, pairs]) => {
  // Of axes.js: numbers as they are written, and axes around each pair of them.
  const { src } = document.querySelector("script[src$='curves.js']");
  const { Scale, padded, short, shortShare } = await import(src.replace("curves.js", "axes.js"));
  const flaws = [];
  const demand = (holds, ...told) => holds || flaws.push(told.map(String).join(" "));
  for (const value of numbers) {
    const near = (written) => Math.abs(written - value) <= 6e-4 * Math.abs(value) + 1e-323;
    const hundredth = (written) => written.includes("e") ? Number(written.replace(/[^e]*$/, (power) => power - 2)) : written / 100;
    demand(near(Number(short(value))) || short(Math.abs(value)) === "1.798e308", "short", value, short(value));
    demand(near(hundredth(shortShare(value))) || shortShare(Math.abs(value)) === "1.798e310", "share", value, shortShare(value));
  }
  for (const pair of pairs) {
    for (const log of [false, true]) {
      const values = log ? pair.filter((value) => value > 0) : pair;
      if (!values.length) continue;
      const [least, most] = [Math.min(...values), Math.max(...values)];
      const ends = padded(least, most, log);
      demand(ends.every(Number.isFinite) && ends[0] < ends[1] && ends[0] <= least && most <= ends[1] && (!log || ends[0] > 0), "padded", pair, log, ends);
      const scale = Scale.around(least, most, log);
      const places = [0, ...[least, most].map((value) => scale.share(value)), 1];
      demand(places.every((place, at) => at === 0 || place > places[at - 1] || (least === most && place === places[at - 1])), "order", pair, log, places);
      demand(!(log ? most > 2 * least : most / 2 - least / 2 > 0.01 * Math.abs(most)) || places[2] - places[1] > 0.3, "apart", pair, log, places);
      if (log) demand(0 < scale.share(0) && scale.share(-most) === scale.share(0) && scale.share(0) < places[1], "zero", pair, scale.share(0));
      for (const value of [least, most]) {
        const back = scale.share(scale.value(scale.share(value)));
        demand(Math.abs(back - scale.share(value)) < 1e-6 || Math.abs(value) < 1e-300, "back", pair, log, value);
      }
      const [shares, found] = [[...scale.marks().keys()], [...scale.marks().values()]];
      demand(found.length <= 20 && shares.every((place, at) => place > -1e-9 && place < 1 + 1e-9 && place > (shares[at - 1] ?? -1)), "marks", pair, log, found);
      demand(found.length >= 2 || least === most || most - least < 1e-9 * Math.abs(most), "few marks", pair, log, found);
    }
  }
  return flaws;
}
