// Saves the notes of an experiment or a run, and shows them as the service renders them.
import { prose } from "./elements.js";
import { call, tell } from "./service.js";

document.addEventListener("submit", async (event) => {
  const section = event.target.closest("[data-notes]");
  if (!section) return;
  event.preventDefault();
  const form = event.target;
  const flaw = form.querySelector(".flaw");
  flaw.hidden = true;
  try {
    await call("PATCH", `/v1/${section.dataset.notes}`, { notes: form.elements.notes.value });
    tell("Saved.");
    await window.htmx.ajax("GET", `/${section.dataset.notes}/notes`, { target: section, swap: "outerHTML" });
  } catch (error) {
    flaw.replaceChildren(...prose(error.message));
    flaw.hidden = false;
  }
});
