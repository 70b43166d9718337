// Requests to /v1 as pages send them: the cookie carries the key, errors come as what a person can read.
import { h, prose } from "./elements.js";

export class Problem extends Error {
  /** @param {{title: string, status: number, detail: string, errors?: {pointer: string, detail: string}[]}} details as RFC 9457 has them */
  constructor(details) {
    super(details.detail);
    Object.assign(this, details);
  }
}

/** The answer to `method path`, as JSON where it is; `body` is sent as JSON. Throws Problem. Without a session it opens the sign-in page. */
export async function call(method, path, body = undefined, options = {}) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const sent = {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    ...options,
  };
  let answer;
  try {
    answer = await fetch(path, sent);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "No response",
      status: 0,
      detail: "The service is unreachable. Is it running?",
    });
  }
  if (answer.status === 401) {
    location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (answer.status === 204) return null;
  const isJson = /[/+]json\b/.test(answer.headers.get("Content-Type") ?? "");
  const value = isJson ? await answer.json() : await answer.text();
  if (!answer.ok)
    throw new Problem(
      isJson
        ? value
        : {
            title: answer.statusText,
            status: answer.status,
            detail: `${answer.status} ${answer.statusText}`,
          },
    );
  return value;
}

/** Show in `badge`, which had its status, that what the page is about exists no more. */
export function showDeleted(badge) {
  badge.dataset.status = "cancelled";
  badge.textContent = "deleted";
  tell("It was deleted, or is no longer shared with you.", "error");
}

/** Tell `text` in the corner, and to screen readers; `kind` is `ok`, `warning` or `error`. Errors stay until they are closed. */
export function tell(text, kind = "ok") {
  const close = h(
    "button",
    { type: "button", class: "quiet", "aria-label": "Close", onclick: () => notice.remove() },
    "×",
  );
  const notice = h("div", { class: `notice ${kind}` }, h("p", {}, prose(text)), close);
  document.getElementById("notices").append(notice);
  if (kind !== "error") setTimeout(() => notice.remove(), 6000);
}
