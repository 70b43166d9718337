// The list asks for itself anew; what is typed above it narrows it as it is typed.
import { poll } from "./poll.js";

poll(document.getElementById("poll"), 3);
document.getElementById("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target.dispatchEvent(new Event("change"));
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
