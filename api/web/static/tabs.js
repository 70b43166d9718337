// Tabs as WAI-ARIA has them: arrows, Home and End move, the address remembers which is open.

/** A page that is still loading goes to the panel in its address once it has loaded, and takes the focus away from the tab. */
function afterLoading(act) {
  if (document.readyState === "complete") act();
  else addEventListener("load", act, { once: true });
}

/** @param {HTMLElement} list with role=tablist; each of its role=tab names its panel by aria-controls; data-first names the panel that is open first, else the first one */
export function tabs(list) {
  const all = [...list.querySelectorAll("[role=tab]")];

  function show(tab, remember = true) {
    for (const other of all) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (remember) afterLoading(() => history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`));
    list.dispatchEvent(new CustomEvent("fedq:tab", { bubbles: true, detail: tab.getAttribute("aria-controls") }));
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) show(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = all[to % all.length];
    tab.focus();
    show(tab);
  });
  const panel = (tab) => tab.getAttribute("aria-controls");
  const wanted = all.find((tab) => `#${panel(tab)}` === location.hash) ?? all.find((tab) => panel(tab) === list.dataset.first);
  show(wanted ?? all[0], false);
}
