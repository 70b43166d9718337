// Keys made, changed and revoked, by /v1/keys.
import { call, Problem, tell } from "./service.js";

const QUOTAS = ["max_waiting_runs", "max_running_runs", "max_stored_bytes", "max_compute_seconds"];
const [terms, secret, revoke] = ["terms", "secret", "revoke"].map((id) => document.getElementById(id));
const form = document.getElementById("terms-form");
/** The key that is being changed, or null while one is being made. */
let changed = null;

document.getElementById("make").addEventListener("click", () => ask(null));
document.getElementById("keys").addEventListener("click", (event) => {
  const deed = event.target.closest("[data-deed]")?.dataset.deed;
  const row = event.target.closest("tr");
  if (deed === "edit") ask(row);
  if (deed === "revoke") confirmRevoking(row);
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
secret.addEventListener("close", () => location.reload());
document.getElementById("copy").addEventListener("click", copy);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

/** Ask for the terms of a new key, or of the one in `row`. */
function ask(row) {
  changed = row;
  const kept = row ? JSON.parse(row.dataset.terms) : { scope: "submit", name: "", expires_at: null };
  document.getElementById("terms-title").textContent = row ? `Change the key of ${row.dataset.owner}` : "Make a key";
  document.getElementById("terms-send").textContent = row ? "Change it" : "Make it";
  form.reset();
  form.querySelector("[data-field=owner]").hidden = row !== null;
  for (const [name, value] of Object.entries(kept)) form.elements[name].value = name === "expires_at" ? localTime(value) : (value ?? "");
  showFlaws([]);
  terms.showModal();
}

/** Send the terms; what is wrong with them is shown at their fields. */
async function send() {
  const given = read();
  const button = document.getElementById("terms-send");
  if (button.disabled) return;
  button.disabled = true;
  try {
    if (changed) {
      await call("PATCH", `/v1/keys/${changed.dataset.key}`, given);
      location.reload();
      return;
    }
    const made = await call("POST", "/v1/keys", { owner: form.elements.owner.value.trim(), ...given });
    terms.close();
    document.getElementById("secret-text").value = made.key;
    secret.showModal();
    document.getElementById("secret-text").select();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    showFlaws(error.errors ?? []);
    if (!error.errors?.length) tell(error.detail, "error");
  } finally {
    button.disabled = false;
  }
}

function read() {
  const { scope, name, expires_at: ends } = form.elements;
  const quotas = QUOTAS.map((field) => [field, number(form.elements[field].value.trim())]);
  return { scope: scope.value, name: name.value, expires_at: ends.value ? new Date(ends.value).toISOString() : null, ...Object.fromEntries(quotas) };
}

/** A number, or what was typed where it is none: the service says what would be right. */
function number(text) {
  if (text === "") return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

function localTime(moment) {
  if (!moment) return "";
  const at = new Date(moment);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

function showFlaws(flaws) {
  for (const field of form.querySelectorAll("[data-field]")) {
    const details = flaws.filter((flaw) => flaw.pointer === `/${field.dataset.field}`).map((flaw) => flaw.detail);
    const words = field.querySelector(".flaw");
    words.textContent = details.join("; ");
    words.hidden = !details.length;
    const control = field.querySelector("input, select");
    if (details.length) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
  form.querySelector("[aria-invalid]")?.focus();
}

function confirmRevoking(row) {
  const name = JSON.parse(row.dataset.terms).name;
  document.getElementById("revoke-words").textContent =
    `The key ${name ? `“${name}” ` : ""}of ${row.dataset.owner} stops working within two seconds, for good. What it made stays.`;
  revoke.returnValue = "no";
  revoke.addEventListener("close", () => revoke.returnValue === "yes" && end(row), { once: true });
  revoke.showModal();
}

async function end(row) {
  try {
    await call("POST", `/v1/keys/${row.dataset.key}/revoke`);
    location.reload();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    tell(error.detail, "error");
  }
}

/** Copy the key; where pages may not (plain HTTP over a network), select it for whoever copies by hand. */
async function copy() {
  const field = document.getElementById("secret-text");
  const told = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(field.value);
    told.textContent = "Copied.";
  } catch {
    field.select();
    told.textContent = "Selected: copy it with the keyboard.";
  }
}
