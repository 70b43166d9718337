// Refreshes parts of a page while it is visible.
const SLOWEST = 4;

/**
 * Trigger `refresh` on `part` (of htmx) every `seconds` while the page is visible and `wanted()`, and immediately when it becomes visible;
 * up to four times less often while nothing changes.
 * @param {HTMLElement} part
 * @param {number} seconds
 */
export function poll(part, seconds, wanted = () => true) {
  let slowness = 1;
  /** @type {ReturnType<typeof setTimeout>} */
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
