// What dialogs have in common: flaws at their fields, a secret that is shown once, a question before what cannot be undone.
import { prose } from "./elements.js";
import { Problem, tell } from "./service.js";

for (const button of document.querySelectorAll("[data-close]"))
  button.addEventListener("click", () => button.closest("dialog").close());
document.getElementById("copy")?.addEventListener("click", copy);

/** Show flaws at the fields of a form ([data-field], with a .flaw in each), and go to the first. */
export function showFlaws(form, flaws) {
  for (const field of form.querySelectorAll("[data-field]")) {
    const pointer = `/${field.dataset.field}`;
    const details = flaws
      .filter((flaw) => flaw.pointer === pointer || flaw.pointer.startsWith(`${pointer}/`))
      .map((flaw) => flaw.detail);
    const words = field.querySelector(".flaw");
    words.replaceChildren(...prose(details.join("; ")));
    words.hidden = !details.length;
    const control = field.querySelector("input, select");
    if (details.length) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
  form.querySelector("[aria-invalid]")?.focus();
}

/** Run `work` when `button` is pressed, one call at a time; show errors at the fields of `form`, if given. */
export async function attempt(work, button = null, form = null) {
  if (button?.disabled) return;
  if (button) button.disabled = true;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const flaws = error.errors ?? [];
    if (form) showFlaws(form, flaws);
    if (!form || !flaws.length) tell(error.detail, "error");
  } finally {
    if (button) button.disabled = false;
  }
}

/** Show a secret, and go on once it was seen. */
export function reveal(text, then) {
  const dialog = document.getElementById("secret");
  const field = document.getElementById("secret-text");
  field.value = text;
  document.getElementById("copied").textContent = "";
  dialog.addEventListener("close", then, { once: true });
  dialog.showModal();
  field.select();
}

/** Ask before `work` is done. */
export function confirmed(title, words, yes, work) {
  const dialog = document.getElementById("certain");
  document.getElementById("certain-title").textContent = title;
  document.getElementById("certain-words").textContent = words;
  document.getElementById("certain-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.addEventListener("close", () => dialog.returnValue === "yes" && attempt(work), { once: true });
  dialog.showModal();
}

/** Copy the secret; where pages may not (plain HTTP over a network), select it to be copied by hand. */
async function copy() {
  const field = document.getElementById("secret-text");
  const told = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(field.value);
    told.textContent = "Copied.";
  } catch {
    field.select();
    told.textContent = "Selected: press Ctrl+C to copy.";
  }
}
