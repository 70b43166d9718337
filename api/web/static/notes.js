// Saves the notes of an experiment or a run, and shows them as the service renders them.
import { around, find, prose } from "./elements.js";
import { call, tell, wordsOf } from "./service.js";

document.addEventListener("submit", async (event) => {
  const section = around(event, "[data-notes]");
  if (!section) return;
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const flaw = find(form, ".flaw");
  flaw.hidden = true;
  try {
    await call("PATCH", `/v1/${section.dataset.notes}`, {
      notes: find(form, "[name=notes]", HTMLTextAreaElement).value,
    });
    tell("Saved.");
    await window.htmx.ajax("GET", `/${section.dataset.notes}/notes`, { target: section, swap: "outerHTML" });
  } catch (error) {
    flaw.replaceChildren(...prose(wordsOf(error)));
    flaw.hidden = false;
  }
});
