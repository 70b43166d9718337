// What every page has: the choice of the theme.
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
