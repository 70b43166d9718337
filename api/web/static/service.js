// Requests to /v1 as pages send them: the cookie carries the key, errors come as what a person can read.
import { byId, h, prose } from "./elements.js";

/** @import { ProblemDetails } from "../types/answers" */

export class Problem extends Error {
  /** @param {Pick<ProblemDetails, "title" | "status" | "detail"> & Partial<ProblemDetails>} details as RFC 9457 has them */
  constructor({ title, status, detail, errors = [] }) {
    super(detail);
    this.title = title;
    this.status = status;
    this.detail = detail;
    this.errors = errors;
  }
}

/**
 * An error in words: the first that the service found in what was sent, or else what it says as a whole.
 * @param {unknown} error
 */
export function wordsOf(error) {
  if (error instanceof Problem) return error.errors[0]?.detail ?? error.message;
  return error instanceof Error ? error.message : String(error);
}

/**
 * The answer to `method path`, as JSON where it is; `body` is sent as JSON. Throws Problem. Without a session it opens the sign-in page.
 * @template Answer what the caller expects
 * @param {string} method
 * @param {string} path
 * @param {unknown} body
 * @param {RequestInit} options
 * @returns {Promise<Answer>}
 */
export async function call(method, path, body = undefined, options = {}) {
  /** @type {HeadersInit} */
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  /** @type {RequestInit} */
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
    if (isAbort(error)) throw error;
    throw new Problem({
      title: "No response",
      status: 0,
      detail: "The service is unreachable. Is it running?",
    });
  }
  if (answer.status === 401) {
    location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (answer.status === 204) return /** @type {Answer} */ (null);
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

/**
 * True of the error of a request that was given up.
 * @param {unknown} error
 */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Show in `badge`, which had its status, that what the page is about exists no more.
 * @param {HTMLElement} badge
 */
export function showDeleted(badge) {
  badge.dataset.status = "cancelled";
  badge.textContent = "deleted";
  tell("It was deleted, or is no longer shared with you.", "error");
}

/**
 * Tell `text` in the corner, and to screen readers. Errors stay until they are closed.
 * @param {string} text
 * @param {"ok" | "warning" | "error"} kind
 */
export function tell(text, kind = "ok") {
  const close = h(
    "button",
    { type: "button", class: "quiet", "aria-label": "Close", onclick: () => notice.remove() },
    "×",
  );
  const notice = h("div", { class: `notice ${kind}` }, h("p", {}, prose(text)), close);
  byId("notices").append(notice);
  if (kind !== "error") setTimeout(() => notice.remove(), 6000);
}
