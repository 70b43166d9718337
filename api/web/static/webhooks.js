// Webhooks made, changed, tried out and deleted, by /v1/webhooks.
import { attempt, confirmed, reveal, showFlaws } from "./dialogs.js";
import { call, tell } from "./service.js";

const HOOKS = "/v1/webhooks";
const terms = document.getElementById("terms");
const form = document.getElementById("terms-form");
/** The webhook of this page; null on the page that lists them. */
const hook = document.getElementById("hook");
const path = hook && `${HOOKS}/${hook.dataset.id}`;

const ACTIONS = {
  edit: () => ask(JSON.parse(hook.dataset.terms)),
  ping: () => attempt(async () => told(await call("POST", `${path}/ping`), "Sending `webhook.ping`.")),
  toggle: () =>
    attempt(async () => told(await call("PATCH", path, { enabled: hook.dataset.enabled === "no" }))),
  delete: () =>
    confirmed("Delete this webhook?", "It stops sending events; pending ones are dropped.", "Delete", remove),
};

document.getElementById("make")?.addEventListener("click", () => ask(null));
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action]");
  if (button) ACTIONS[button.dataset.action]();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(send, document.getElementById("terms-send"), form);
});

/** Ask for the terms of a new webhook, or of the one that has `kept`. */
function ask(kept) {
  document.getElementById("terms-title").textContent = kept ? "Edit webhook" : "Create webhook";
  document.getElementById("terms-send").textContent = kept ? "Save" : "Create";
  form.reset();
  if (kept) {
    for (const name of ["url", "name", "experiment_id"]) form.elements[name].value = kept[name] ?? "";
    for (const box of form.elements.events) box.checked = kept.events.includes(box.value);
  }
  showFlaws(form, []);
  terms.showModal();
}

async function send() {
  const { url, name, experiment_id: experiment } = form.elements;
  const events = [...form.elements.events].filter((box) => box.checked).map((box) => box.value);
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
  const made = await call("POST", HOOKS, given);
  terms.close();
  reveal(made.secret, () => location.assign(`/webhooks/${made.id}`));
}

async function remove() {
  await call("DELETE", path);
  location.assign("/webhooks");
}

/** Say what was done; without words, show the page as it is now. */
function told(_answer, words = "") {
  if (words) tell(words);
  else location.reload();
}
