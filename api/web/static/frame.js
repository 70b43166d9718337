// What every page has: the choice of the theme, keyboard shortcuts, and buttons that copy an id.
import { bringIntoView } from "./elements.js";

const THEMES = ["system", "light", "dark"];

function showTheme(button, name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  button.textContent = { system: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[name];
  document.dispatchEvent(new CustomEvent("fedq:theme"));
}

function offerThemes(button) {
  let current = document.documentElement.dataset.theme ?? "system";
  showTheme(button, current);
  button.hidden = false;
  button.addEventListener("click", () => {
    current = THEMES[(THEMES.indexOf(current) + 1) % THEMES.length];
    showTheme(button, current);
    try {
      if (current === "system") localStorage.removeItem("fedq-theme");
      else localStorage.setItem("fedq-theme", current);
    } catch {
      // The choice then holds for this page alone.
    }
  });
}

offerThemes(document.getElementById("theme"));

const shortcuts = document.getElementById("shortcuts");
const SEARCH = "#search";

/** Go to the search field that is visible, or else to that of the list. */
function search() {
  const field = [...document.querySelectorAll("main input[type=search]")].find((input) =>
    input.checkVisibility(),
  );
  if (field) field.focus();
  else location.assign(`/${SEARCH}`);
}

document.addEventListener("keydown", (event) => {
  const writing = event.target.closest("input, select, textarea, [contenteditable], [role=textbox]");
  if (writing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  if (event.key === "/") search();
  else if (event.key === "?") shortcuts.showModal();
  else return;
  event.preventDefault();
});
const help = document.getElementById("help");
help.hidden = false;
help.addEventListener("click", () => shortcuts.showModal());
if (location.pathname === "/" && location.hash === SEARCH) search();
// On a phone the navigation scrolls.
const navigation = document.querySelector(".bar nav");
const here = navigation?.querySelector("[aria-current]");
if (here) bringIntoView(navigation, here);
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    // Pages over plain HTTP may not: select the id, to be copied by hand.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

// Back and Forward show what the page holds: htmx would fetch the page again, and its scripts would hold elements that are gone.
document.addEventListener("htmx:before:history:restore", (event) => event.preventDefault());
