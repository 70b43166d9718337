// The YAML editor: Ace, from which Escape and Tab lead out; where there is no Ace, the plain text area that it takes the place of.
const ace = globalThis.ace;

/** A look made of the page's own colours (submit.css). */
function defineTheme() {
  ace.define("ace/theme/fedq", ["require", "exports", "module"], (_require, exports) => {
    Object.assign(exports, { isDark: false, cssClass: "ace-fedq", cssText: "" });
  });
}

export class Editor {
  #quiet = false;

  /**
   * @param {HTMLTextAreaElement} area holds the text, and is put away
   * @param {(text: string) => void} changed is called with what is typed
   */
  constructor(area, changed) {
    ace.config.set("useStrictCSP", true);
    ace.config.set("basePath", area.dataset.ace);
    defineTheme();
    const host = document.createElement("div");
    host.className = "editor";
    area.hidden = true;
    area.after(host);
    this.ace = ace.edit(host, {
      value: area.value,
      // Before the mode, which would start one from a blob.
      useWorker: false,
      mode: "ace/mode/yaml",
      theme: "ace/theme/fedq",
      tabSize: 2,
      useSoftTabs: true,
      showPrintMargin: false,
      enableKeyboardAccessibility: true,
      textInputAriaLabel: area.getAttribute("aria-label"),
      fontSize: 13,
      minLines: 22,
      maxLines: 44,
      fixedWidthGutter: true,
      wrap: true,
    });
    this.ace.session.on("change", () => this.#quiet || changed(this.ace.getValue()));
  }

  /**
   * Show another text; it can be undone.
   * @param {string} text
   */
  show(text) {
    if (text === this.ace.getValue()) return;
    const { row, column } = this.ace.getCursorPosition();
    const { session } = this.ace;
    this.#quiet = true;
    session.replace({ start: { row: 0, column: 0 }, end: { row: session.getLength(), column: 0 } }, text);
    this.#quiet = false;
    this.ace.moveCursorTo(row, column);
    this.ace.clearSelection();
  }

  /**
   * Mark flaws at their lines.
   * @param {{ line?: number | null, column?: number | null, detail: string }[]} flaws
   */
  mark(flaws) {
    const last = this.ace.session.getLength() - 1;
    this.ace.session.setAnnotations(
      flaws.map(({ line, column, detail }) => ({
        row: Math.min((line ?? 1) - 1, last),
        column: (column ?? 1) - 1,
        text: detail,
        type: "error",
      })),
    );
  }

  /**
   * Go to a place, counted from 1.
   * @param {number} line
   * @param {number} column
   */
  reveal(line, column) {
    this.ace.gotoLine(line, column - 1, false);
    this.ace.focus();
  }

  /** To be called once it is to be seen. */
  fit() {
    this.ace.resize(true);
  }
}
