// The list asks for itself anew; what is typed above it narrows it as it is typed.
import { poll } from "./poll.js";

poll(document.getElementById("poll"), 3);
document.getElementById("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target.dispatchEvent(new Event("change"));
});
