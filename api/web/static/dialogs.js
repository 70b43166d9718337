// What dialogs have in common: flaws at their fields, a secret that is shown once, a question before what cannot be undone.
import { byId, find, prose } from "./elements.js";
import { Problem, tell } from "./service.js";

/** @import { ProblemDetails } from "../types/answers" */

for (const button of document.querySelectorAll("[data-close]"))
  button.addEventListener("click", () => button.closest("dialog")?.close());
document.getElementById("copy")?.addEventListener("click", copy);

/**
 * Show flaws at the fields of a form ([data-field], with a .flaw in each), and go to the first.
 * @param {HTMLFormElement} form
 * @param {Pick<ProblemDetails["errors"][number], "pointer" | "detail">[]} flaws
 */
export function showFlaws(form, flaws) {
  /** @type {NodeListOf<HTMLElement>} */
  const fields = form.querySelectorAll("[data-field]");
  for (const field of fields) {
    const pointer = `/${field.dataset.field}`;
    const details = flaws
      .filter((flaw) => flaw.pointer === pointer || flaw.pointer.startsWith(`${pointer}/`))
      .map((flaw) => flaw.detail);
    const words = find(field, ".flaw");
    words.replaceChildren(...prose(details.join("; ")));
    words.hidden = !details.length;
    const control = find(field, "input, select");
    if (details.length) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
  /** @type {HTMLElement | null} */ (form.querySelector("[aria-invalid]"))?.focus();
}

/**
 * Run `work` when `button` is pressed, one call at a time; show errors at the fields of `form`, if given.
 * @param {() => Promise<unknown>} work
 * @param {HTMLButtonElement | null} button
 * @param {HTMLFormElement | null} form
 */
export async function attempt(work, button = null, form = null) {
  if (button?.disabled) return;
  if (button) button.disabled = true;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const flaws = error.errors;
    if (form) showFlaws(form, flaws);
    if (!form || !flaws.length) tell(error.detail, "error");
  } finally {
    if (button) button.disabled = false;
  }
}

/**
 * Show a secret, and go on once it was seen.
 * @param {string} text
 * @param {() => void} then
 */
export function reveal(text, then) {
  const dialog = byId("secret", HTMLDialogElement);
  const field = byId("secret-text", HTMLInputElement);
  field.value = text;
  byId("copied").textContent = "";
  dialog.addEventListener("close", then, { once: true });
  dialog.showModal();
  field.select();
}

/**
 * Ask before `work` is done.
 * @param {string} title
 * @param {string} words
 * @param {string} yes
 * @param {() => Promise<unknown>} work
 */
export function confirmed(title, words, yes, work) {
  const dialog = byId("certain", HTMLDialogElement);
  byId("certain-title").textContent = title;
  byId("certain-words").textContent = words;
  byId("certain-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.addEventListener("close", () => dialog.returnValue === "yes" && attempt(work), { once: true });
  dialog.showModal();
}

/** Copy the secret; where pages may not (plain HTTP over a network), select it to be copied by hand. */
async function copy() {
  const field = byId("secret-text", HTMLInputElement);
  const told = byId("copied");
  try {
    await navigator.clipboard.writeText(field.value);
    told.textContent = "Copied.";
  } catch {
    field.select();
    told.textContent = "Selected: press Ctrl+C to copy.";
  }
}
