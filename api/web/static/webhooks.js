// Webhooks made, changed, tried out and deleted, by /v1/webhooks.
import { attempt, confirmed, reveal, showFlaws } from "./dialogs.js";
import { around, byId } from "./elements.js";
import { call, tell } from "./service.js";

/** @import { NewWebhook } from "../types/answers" */

/** @typedef {Record<"url" | "name" | "experiment_id", HTMLInputElement>} Fields */
/** @typedef {Record<string, string | null> & { events: string[] }} Terms */

const HOOKS = "/v1/webhooks";
const terms = byId("terms", HTMLDialogElement);
const form = byId("terms-form", HTMLFormElement);
/** The webhook of this page; null on the page that lists them. */
const hook = document.getElementById("hook");
const path = `${HOOKS}/${hook?.dataset.id}`;
/** @type {NodeListOf<HTMLInputElement>} */
const boxes = form.querySelectorAll("[name=events]");
const fields = /** @type {Fields} */ (/** @type {unknown} */ (form.elements));

/** @type {Record<string, () => unknown>} */
const ACTIONS = {
  edit: () => ask(JSON.parse(hook?.dataset.terms ?? "null")),
  ping: () => attempt(async () => told(await call("POST", `${path}/ping`), "Sending `webhook.ping`.")),
  toggle: () =>
    attempt(async () => told(await call("PATCH", path, { enabled: hook?.dataset.enabled === "no" }))),
  delete: () =>
    confirmed("Delete this webhook?", "It stops sending events; pending ones are dropped.", "Delete", remove),
};

document.getElementById("make")?.addEventListener("click", () => ask(null));
document.addEventListener("click", (event) => {
  const button = around(event, "[data-action]");
  if (button) ACTIONS[button.dataset.action ?? ""]?.();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(send, byId("terms-send", HTMLButtonElement), form);
});

/**
 * Ask for the terms of a new webhook, or of the one that has `kept`.
 * @param {Terms | null} kept
 */
function ask(kept) {
  byId("terms-title").textContent = kept ? "Edit webhook" : "Create webhook";
  byId("terms-send", HTMLButtonElement).textContent = kept ? "Save" : "Create";
  form.reset();
  if (kept) {
    for (const field of [fields.url, fields.name, fields.experiment_id]) field.value = kept[field.name] ?? "";
    for (const box of boxes) box.checked = kept.events.includes(box.value);
  }
  showFlaws(form, []);
  terms.showModal();
}

async function send() {
  const { url, name, experiment_id: experiment } = fields;
  const events = [...boxes].filter((box) => box.checked).map((box) => box.value);
  const given = {
    url: url.value.trim(),
    name: name.value,
    events,
    experiment_id: experiment.value.trim() || null,
  };
  if (hook) {
    await call("PATCH", path, given);
    location.reload();
    return;
  }
  /** @type {NewWebhook} */
  const made = await call("POST", HOOKS, given);
  terms.close();
  reveal(made.secret, () => location.assign(`/webhooks/${made.id}`));
}

async function remove() {
  await call("DELETE", path);
  location.assign("/webhooks");
}

/**
 * Say what was done; without words, show the page as it is now.
 * @param {unknown} _answer
 */
function told(_answer, words = "") {
  if (words) tell(words);
  else location.reload();
}
