// Keys made, changed and revoked, by /v1/keys.
import { attempt, confirmed, reveal, showFlaws } from "./dialogs.js";
import { around, byId, find } from "./elements.js";
import { call } from "./service.js";

/** @import { NewKey } from "../types/answers" */

/** @typedef {Record<string, HTMLInputElement> & { scope: HTMLSelectElement }} Fields by what they set */

const QUOTAS = ["max_waiting_runs", "max_running_runs", "max_stored_bytes", "max_compute_seconds"];
const terms = byId("terms", HTMLDialogElement);
const form = byId("terms-form", HTMLFormElement);
const fields = /** @type {Fields} */ (/** @type {unknown} */ (form.elements));
/**
 * The row of the key that is being changed, or null while one is being made.
 * @type {HTMLElement | null}
 */
let changed = null;

byId("make").addEventListener("click", () => ask(null));
byId("keys").addEventListener("click", (event) => {
  const action = around(event, "[data-action]")?.dataset.action;
  const row = around(event, "tr");
  if (action === "edit") ask(row);
  if (action === "revoke" && row) confirmRevoking(row);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(send, byId("terms-send", HTMLButtonElement), form);
});

/**
 * Ask for the terms of a new key, or of the one in `row`.
 * @param {HTMLElement | null} row
 */
function ask(row) {
  changed = row;
  const kept = row
    ? JSON.parse(row.dataset.terms ?? "null")
    : { scope: "submit", code: false, name: "", expires_at: null };
  byId("terms-title").textContent = row ? `Edit key of ${row.dataset.owner}` : "Create key";
  byId("terms-send", HTMLButtonElement).textContent = row ? "Save" : "Create";
  form.reset();
  find(form, "[data-field=owner]").hidden = row !== null;
  const { code, ...texts } = kept;
  fields.code.checked = code;
  for (const [name, value] of Object.entries(/** @type {Record<string, string | null>} */ (texts)))
    fields[name].value = name === "expires_at" ? typed(value) : (value ?? "");
  showFlaws(form, []);
  terms.showModal();
}

async function send() {
  const given = read();
  if (changed) {
    await call("PATCH", `/v1/keys/${changed.dataset.key}`, given);
    location.reload();
    return;
  }
  /** @type {NewKey} */
  const made = await call("POST", "/v1/keys", { owner: fields.owner.value.trim(), ...given });
  terms.close();
  reveal(made.key, () => location.reload());
}

function read() {
  const { scope, code, name, expires_at: ends } = fields;
  const quotas = QUOTAS.map((field) => [field, number(fields[field].value.trim())]);
  return {
    scope: scope.value,
    code: code.checked,
    name: name.value,
    expires_at: ends.value ? `${ends.value}Z` : null,
    ...Object.fromEntries(quotas),
  };
}

/**
 * A number, or what was typed where it is none: the service says what would be right.
 * @param {string} text
 */
function number(text) {
  if (text === "") return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/**
 * A time as the field takes it: in UTC, as all times of these pages.
 * @param {string | null} moment
 */
function typed(moment) {
  return moment ? new Date(moment).toISOString().slice(0, 16) : "";
}

/** @param {HTMLElement} row */
function confirmRevoking(row) {
  const { name } = JSON.parse(row.dataset.terms ?? "null");
  const words = `Key ${name ? `“${name}” ` : ""}of ${row.dataset.owner} stops working within two seconds, permanently. Everything created with it is kept.`;
  confirmed("Revoke this key?", words, "Revoke", async () => {
    await call("POST", `/v1/keys/${row.dataset.key}/revoke`);
    location.reload();
  });
}
