// Parts of a page that ask for themselves anew, while somebody looks.
const SLOWEST = 4;

/**
 * Trigger `refresh` on `part` (of htmx) every so many seconds while the page is seen and `wanted()`, and at once when it is seen again;
 * up to four times as seldom while nothing changes.
 */
export function poll(part, seconds, wanted = () => true) {
  let slowness = 1;
  let timer;
  const ask = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 1000 * seconds * slowness);
    if (!document.hidden && wanted()) window.htmx.trigger(part, "refresh");
  };
  part.addEventListener("htmx:after:request", (event) => {
    slowness = event.detail.ctx.response.status === 204 ? Math.min(1.5 * slowness, SLOWEST) : 1;
  });
  document.addEventListener("visibilitychange", () => {
    slowness = 1;
    ask();
  });
  timer = setTimeout(ask, 1000 * seconds);
}
