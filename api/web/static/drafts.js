// What is being written, kept in this browser by who writes it and the address it was begun at, so that a reload loses nothing.
const PREFIX = `fedq-draft:${document.getElementById("desk").dataset.owner}:`;

export function keep(address, text) {
  quietly(() => localStorage.setItem(PREFIX + address, JSON.stringify({ text, at: Date.now() })));
}

export function recall(address) {
  return quietly(() => JSON.parse(localStorage.getItem(PREFIX + address))?.text) ?? null;
}

export function drop(address) {
  quietly(() => localStorage.removeItem(PREFIX + address));
}

/** Those of the same owner at other addresses, newest first: [{address, text, at}]. */
export function others(address) {
  const found = quietly(() =>
    Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX) && key !== PREFIX + address)
      .map((key) => ({ address: key.slice(PREFIX.length), ...JSON.parse(localStorage.getItem(key)) })),
  );
  return (found ?? []).sort((one, other) => other.at - one.at);
}

/** Without storage, or with a full one, nothing is kept. */
function quietly(action) {
  try {
    return action();
  } catch {
    return null;
  }
}
