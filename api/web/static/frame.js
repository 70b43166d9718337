// What every page has: the choice of the theme, keyboard shortcuts, and buttons that copy an id.
import { around, bringIntoView, byId } from "./elements.js";

/** @typedef {"system" | "light" | "dark"} ThemeName */

/** @type {ThemeName[]} */
const THEMES = ["system", "light", "dark"];
const WORDS = { system: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };

/**
 * @param {HTMLElement} button
 * @param {ThemeName} name
 */
function showTheme(button, name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  button.textContent = WORDS[name];
  document.dispatchEvent(new CustomEvent("fedq:theme"));
}

/** @param {HTMLElement} button */
function offerThemes(button) {
  const { theme } = document.documentElement.dataset;
  let current = THEMES.find((name) => name === theme) ?? "system";
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

offerThemes(byId("theme"));

const shortcuts = byId("shortcuts", HTMLDialogElement);
const SEARCH = "#search";

/** Go to the search field that is visible, or else to that of the list. */
function search() {
  /** @type {NodeListOf<HTMLInputElement>} */
  const fields = document.querySelectorAll("main input[type=search]");
  const field = [...fields].find((input) => input.checkVisibility());
  if (field) field.focus();
  else location.assign(`/${SEARCH}`);
}

document.addEventListener("keydown", (event) => {
  const writing = around(event, "input, select, textarea, [contenteditable], [role=textbox]");
  if (writing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  if (event.key === "/") search();
  else if (event.key === "?") shortcuts.showModal();
  else return;
  event.preventDefault();
});
const help = byId("help");
help.hidden = false;
help.addEventListener("click", () => shortcuts.showModal());
if (location.pathname === "/" && location.hash === SEARCH) search();
// On a phone the navigation scrolls.
const navigation = document.querySelector(".bar nav");
const here = navigation?.querySelector("[aria-current]");
if (navigation && here) bringIntoView(navigation, here);
document.addEventListener("click", async (event) => {
  const button = around(event, "[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy ?? "");
    button.textContent = "Copied";
  } catch {
    // Pages over plain HTTP may not: select the id, to be copied by hand.
    if (button.previousElementSibling) getSelection()?.selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

// Back and Forward show what the page holds: htmx would fetch the page again, and its scripts would hold elements that are gone.
document.addEventListener("htmx:before:history:restore", (event) => event.preventDefault());
