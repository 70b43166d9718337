// Keys made, changed and revoked, by /v1/keys.
import { attempt, confirmed, reveal, showFlaws } from "./dialogs.js";
import { call } from "./service.js";

const QUOTAS = ["max_waiting_runs", "max_running_runs", "max_stored_bytes", "max_compute_seconds"];
const terms = document.getElementById("terms");
const form = document.getElementById("terms-form");
/** The key that is being changed, or null while one is being made. */
let changed = null;

document.getElementById("make").addEventListener("click", () => ask(null));
document.getElementById("keys").addEventListener("click", (event) => {
  const action = event.target.closest("[data-action]")?.dataset.action;
  const row = event.target.closest("tr");
  if (action === "edit") ask(row);
  if (action === "revoke") confirmRevoking(row);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(send, document.getElementById("terms-send"), form);
});

/** Ask for the terms of a new key, or of the one in `row`. */
function ask(row) {
  changed = row;
  const kept = row
    ? JSON.parse(row.dataset.terms)
    : { scope: "submit", code: false, name: "", expires_at: null };
  document.getElementById("terms-title").textContent = row
    ? `Edit key of ${row.dataset.owner}`
    : "Create key";
  document.getElementById("terms-send").textContent = row ? "Save" : "Create";
  form.reset();
  form.querySelector("[data-field=owner]").hidden = row !== null;
  const { code, ...texts } = kept;
  form.elements.code.checked = code;
  for (const [name, value] of Object.entries(texts))
    form.elements[name].value = name === "expires_at" ? typed(value) : (value ?? "");
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
  const made = await call("POST", "/v1/keys", { owner: form.elements.owner.value.trim(), ...given });
  terms.close();
  reveal(made.key, () => location.reload());
}

function read() {
  const { scope, code, name, expires_at: ends } = form.elements;
  const quotas = QUOTAS.map((field) => [field, number(form.elements[field].value.trim())]);
  return {
    scope: scope.value,
    code: code.checked,
    name: name.value,
    expires_at: ends.value ? `${ends.value}Z` : null,
    ...Object.fromEntries(quotas),
  };
}

/** A number, or what was typed where it is none: the service says what would be right. */
function number(text) {
  if (text === "") return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/** A time as the field takes it: in UTC, as all times of these pages. */
function typed(moment) {
  return moment ? new Date(moment).toISOString().slice(0, 16) : "";
}

function confirmRevoking(row) {
  const { name } = JSON.parse(row.dataset.terms);
  const words = `Key ${name ? `“${name}” ` : ""}of ${row.dataset.owner} stops working within two seconds, permanently. Everything created with it is kept.`;
  confirmed("Revoke this key?", words, "Revoke", async () => {
    await call("POST", `/v1/keys/${row.dataset.key}/revoke`);
    location.reload();
  });
}
