// The list asks for itself anew; what is typed above it narrows it as it is typed.
import { poll } from "./poll.js";
import { call, tell } from "./service.js";

poll(document.getElementById("poll"), 3);
document.getElementById("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target.dispatchEvent(new Event("change"));
});

document.addEventListener("click", async ({ target }) => {
  const star = target.closest("[data-star]");
  if (!star) return;
  try {
    await call("PATCH", `/v1/experiments/${star.dataset.star}`, { starred: star.ariaPressed !== "true" });
    window.htmx.trigger(document.getElementById("poll"), "refresh");
  } catch (error) {
    tell(error.message, "error");
  }
});

// What is chosen to be compared stays chosen when the list is renewed.
const chosen = new Set();
document.addEventListener("change", ({ target }) => {
  if (target.name !== "arm") return;
  if (target.checked) chosen.add(target.value);
  else chosen.delete(target.value);
});
document.addEventListener("htmx:after:swap", () => {
  for (const box of document.querySelectorAll("#list input[name=arm]")) box.checked = chosen.has(box.value);
});
