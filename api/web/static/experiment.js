// One experiment: its buttons, its tabs, and parts that are asked for anew when something has changed.
import { prose } from "./elements.js";
import { poll } from "./poll.js";
import { call, showDeleted, tell } from "./service.js";
import { tabs } from "./tabs.js";

const root = document.getElementById("experiment");
const path = `/v1/experiments/${root.dataset.id}`;
const asking = document.getElementById("poll");
const name = () => root.querySelector("h1").firstChild.textContent.trim();
const DONE = {
  pause: "Pausing: runs stop after their current round.",
  resume: "Resumed: the runs are queued.",
  cancel: "Cancelling: runs stop after their current round.",
  retry: "Retrying: failed and cancelled runs are queued.",
};

const MARKS = { star: "starred", archive: "archived" };

function refresh() {
  window.htmx.trigger(asking, "refresh");
}

/** Ask by a dialog with `method=dialog`; whether the answer is yes. */
function confirmed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
  );
}

async function act(action) {
  if (action === "edit") return edit();
  if (action === "extend") return extend();
  if (action === "delete") return remove();
  if (action === "cancel" && !(await confirmed(document.getElementById("confirm-cancel")))) return;
  if (action in MARKS) return mark(action);
  await call("POST", `${path}/${action}`);
  tell(DONE[action]);
  refresh();
}

/** Set or remove the star, or archive and take back. */
async function mark(action) {
  const set = root.querySelector(`[data-act=${action}]`).ariaPressed !== "true";
  await call("PATCH", path, { [MARKS[action]]: set });
  if (action === "archive")
    tell(set ? "Archived: the list shows it under “archived” only." : "Taken back from the archive.");
  refresh();
}

async function remove() {
  const dialog = document.getElementById("confirm-delete");
  const typed = document.getElementById("typed");
  document.getElementById("typed-name").textContent = name();
  typed.value = "";
  document.getElementById("delete-it").disabled = true;
  typed.oninput = () => (document.getElementById("delete-it").disabled = typed.value.trim() !== name());
  if (await confirmed(dialog)) {
    await call("DELETE", path);
    location.assign("/");
  }
}

async function edit() {
  const known = await call("GET", path);
  const { form, fields } = opened("edit", async () => {
    const tags = fields.tags.value
      .split(",")
      .map((tag) => tag.trim())
      .filter(Boolean);
    await call("PATCH", path, { name: fields.name.value, tags, priority: fields.priority.valueAsNumber });
    return "Saved.";
  });
  fields.name.value = known.name;
  fields.tags.value = known.tags.join(", ");
  fields.priority.value = known.priority;
  form.closest("dialog").showModal();
}

/** A seed as it was typed where a number would not be the same. */
function seed(text) {
  return Number.isSafeInteger(Number(text)) ? Number(text) : text;
}

async function extend() {
  const { rounds, seeds } = (await call("GET", path)).specification;
  const { form, fields } = opened("extend", async () => {
    const more = fields.seeds.value
      .split(/[,\s]+/)
      .filter(Boolean)
      .map(seed);
    if (fields.rounds.valueAsNumber === rounds && more.every((one) => seeds.includes(one)))
      throw new Error("Nothing to extend: the runs have these rounds and seeds.");
    await call("POST", `${path}/extend`, { rounds: fields.rounds.valueAsNumber, seeds: more });
    return "Extended: the runs are queued.";
  });
  fields.rounds.min = fields.rounds.value = rounds;
  fields.seeds.value = "";
  form.querySelector(".help span").textContent = seeds.join(", ");
  form.closest("dialog").showModal();
  fields.rounds.select();
}

/** The form of a dialog, about to be shown; `send` says what was done once it is sent, and what it throws is shown in the dialog. */
function opened(id, send) {
  const form = document.getElementById(id).querySelector("form");
  const flaw = form.querySelector(".flaw");
  flaw.hidden = true;
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      const done = await send();
      form.closest("dialog").close();
      tell(done);
      refresh();
    } catch (error) {
      flaw.replaceChildren(...prose(error.message));
      flaw.hidden = false;
    }
  };
  return { form, fields: form.elements };
}

const sharing = document.getElementById("sharing");
sharing?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const flaw = sharing.querySelector(".flaw");
  const names = (field) =>
    sharing.elements[field].value
      .split(",")
      .map((name) => name.trim())
      .filter(Boolean);
  flaw.hidden = true;
  try {
    const now = await call("PATCH", `${path}/access`, { read: names("read"), write: names("write") });
    for (const field of ["read", "write"]) sharing.elements[field].value = now[field].join(", ");
    tell("Saved.");
  } catch (error) {
    flaw.replaceChildren(...prose(error.errors?.[0]?.detail ?? error.message));
    flaw.hidden = false;
  }
});

root.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act]");
  if (!button || button.disabled) return;
  button.disabled = true;
  try {
    await act(button.dataset.act);
  } catch (error) {
    tell(error.message, "error");
  } finally {
    button.disabled = false;
  }
});

document.addEventListener("click", (event) => {
  const close = event.target.closest("[data-close]");
  if (close) close.closest("dialog").close();
  const run = event.target.closest("a[data-run]");
  if (run && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    showRun(run.getAttribute("href"));
  }
});

async function showRun(address) {
  const body = document.getElementById("run-body");
  body.textContent = "Loading…";
  document.getElementById("run-details").showModal();
  await window.htmx.ajax("GET", address, { target: body, swap: "innerHTML" });
}

document.addEventListener("htmx:after:swap", (event) => {
  if (event.target !== asking) return;
  const now = document.getElementById("seen").dataset;
  document.title = `${name()} · FedQ`;
  // Hidden parts are loaded when they become visible.
  for (const part of document.querySelectorAll("section:not([hidden]) .live"))
    window.htmx.trigger(part, "refresh");
  // The first round brings the curves; what is being written is not lost for them.
  if (
    document.getElementById("no-results") &&
    Number(now.rounds) &&
    !document.querySelector("dialog[open], .notes details[open]")
  )
    location.reload();
  document.dispatchEvent(
    new CustomEvent("fedq:moved", { detail: { status: now.status, live: now.live === "yes" } }),
  );
});

document.getElementById("copy").addEventListener("click", async () => {
  const yaml = document.getElementById("yaml");
  try {
    await navigator.clipboard.writeText(yaml.textContent);
    tell("Copied.");
  } catch {
    getSelection().selectAllChildren(yaml);
    tell("Selected: press Ctrl+C to copy.", "warning");
  }
});

asking.addEventListener("htmx:after:request", (event) => {
  const seen = document.getElementById("seen").dataset;
  if (event.detail.ctx.response.status !== 404 || seen.status === "deleted") return;
  // Nothing is asked for again.
  Object.assign(seen, { status: "deleted", live: "" });
  showDeleted(root.querySelector("h1 .badge"));
  root.querySelector(".toolbar")?.remove();
});

tabs(document.querySelector("[role=tablist]"));
poll(asking, 3, () => document.getElementById("seen").dataset.live === "yes");
