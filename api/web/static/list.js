// The list asks for itself anew; what is typed above it narrows it as it is typed.
import { around, byId } from "./elements.js";
import { poll } from "./poll.js";
import { call, tell, wordsOf } from "./service.js";

poll(byId("poll"), 3);
byId("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target?.dispatchEvent(new Event("change"));
});

document.addEventListener("click", async (event) => {
  const star = around(event, "[data-star]");
  if (!star) return;
  try {
    await call("PATCH", `/v1/experiments/${star.dataset.star}`, { starred: star.ariaPressed !== "true" });
    window.htmx.trigger(byId("poll"), "refresh");
  } catch (error) {
    tell(wordsOf(error), "error");
  }
});

// What is chosen to be compared stays chosen when the list is renewed.
/** @type {Set<string>} */
const chosen = new Set();
document.addEventListener("change", ({ target }) => {
  if (!(target instanceof HTMLInputElement) || target.name !== "arm") return;
  if (target.checked) chosen.add(target.value);
  else chosen.delete(target.value);
});
document.addEventListener("htmx:after:swap", () => {
  /** @type {NodeListOf<HTMLInputElement>} */
  const boxes = document.querySelectorAll("#list input[name=arm]");
  for (const box of boxes) box.checked = chosen.has(box.value);
});
