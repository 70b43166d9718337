// Before anything is drawn: the theme that was chosen here, if any; else that of the system holds.
(() => {
  try {
    const chosen = localStorage.getItem("fedq-theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage the system's theme holds.
  }
})();
