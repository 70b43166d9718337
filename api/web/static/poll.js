// Parts of a page that ask for themselves anew, while somebody looks.
/** Trigger `refresh` on `part` (of htmx) every so many seconds while the page is seen and `wanted()`, and at once when it is seen again. */
export function poll(part, seconds, wanted = () => true) {
  const ask = () => {
    if (!document.hidden && wanted()) window.htmx.trigger(part, "refresh");
  };
  setInterval(ask, 1000 * seconds);
  document.addEventListener("visibilitychange", ask);
}
