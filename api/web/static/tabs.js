// Tabs as WAI-ARIA has them: arrows, Home and End move. The address names the open one, so that Back and Forward move between tabs.

import { around, bringIntoView, byId } from "./elements.js";

/**
 * A page that is still loading goes to the panel in its address once it has loaded, and takes the focus away from the tab.
 * @param {() => void} act
 */
function afterLoading(act) {
  if (document.readyState === "complete") act();
  else addEventListener("load", act, { once: true });
}

/** @param {HTMLElement} list with role=tablist; each of its role=tab names its panel by aria-controls; data-first names the panel that is open first, else the first one */
export function tabs(list) {
  /** @type {NodeListOf<HTMLElement>} */
  const found = list.querySelectorAll("[role=tab]");
  const all = [...found];
  /** @param {Element} tab */
  const panel = (tab) => tab.getAttribute("aria-controls") ?? "";
  /** @param {Element} tab */
  const isOpen = (tab) => tab.getAttribute("aria-selected") === "true";

  /** @param {HTMLElement} tab */
  function show(tab) {
    for (const other of all) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      byId(panel(other)).hidden = !chosen;
    }
    bringIntoView(list, tab);
    list.dispatchEvent(new CustomEvent("fedq:tab", { bubbles: true, detail: panel(tab) }));
  }

  /** @param {HTMLElement} tab */
  function choose(tab) {
    if (isOpen(tab)) return;
    show(tab);
    afterLoading(() => history.pushState(null, "", `#${panel(tab)}`));
  }

  /** The tab that the address names, or else the first one. */
  function addressed() {
    const { hash } = location;
    return (
      all.find((tab) => `#${panel(tab)}` === hash) ??
      all.find((tab) => panel(tab) === list.dataset.first) ??
      all[0]
    );
  }

  /** Follow the address; a fragment that names no tab is a place in the page. */
  function follow() {
    const tab = addressed();
    if (!isOpen(tab) && (!location.hash || `#${panel(tab)}` === location.hash)) show(tab);
  }

  list.addEventListener("click", (event) => {
    const tab = around(event, "[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = all.findIndex((tab) => tab === document.activeElement);
    /** @type {Record<string, number>} */
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 };
    const to = places[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = all[to % all.length];
    tab.focus();
    choose(tab);
  });
  addEventListener("popstate", follow);
  addEventListener("hashchange", follow);
  show(addressed());
}
