// What scripts find in the page: libraries that are loaded as scripts, and events.

interface Window {
    htmx: {
        trigger(element: Element, event: string): void;
        ajax(method: string, address: string, options: { target: Element; swap: string }): Promise<void>;
    };
    ace: Ace;
}

declare var ace: Ace;

interface Ace {
    config: { set(name: string, value: unknown): void };
    define(name: string, needed: string[], module: (require: unknown, exports: object) => void): void;
    edit(element: HTMLElement, options: object): AceEditor;
}

interface AceEditor {
    session: {
        on(event: "change", listener: () => void): void;
        getLength(): number;
        replace(range: { start: AcePosition; end: AcePosition }, text: string): void;
        setAnnotations(annotations: (AcePosition & { text: string; type: "error" })[]): void;
    };
    getValue(): string;
    getCursorPosition(): AcePosition;
    moveCursorTo(row: number, column: number): void;
    clearSelection(): void;
    gotoLine(line: number, column: number, animate: boolean): void;
    focus(): void;
    resize(force: boolean): void;
}

interface AcePosition {
    row: number;
    column: number;
}

/** An event of htmx about an answer. */
type HtmxEvent = CustomEvent<{ ctx: { response: Response } }>;

interface HTMLElementEventMap {
    "fedq:zoom": CustomEvent<null>;
    "fedq:place": CustomEvent<{ x: number | null; spoken: boolean }>;
    /** The id of the panel that was opened. */
    "fedq:tab": CustomEvent<string>;
    "htmx:after:request": HtmxEvent;
}

interface DocumentEventMap {
    "fedq:theme": CustomEvent<null>;
    /** The arms that are hidden. */
    "fedq:hidden": CustomEvent<Set<number>>;
    "fedq:moved": CustomEvent<{ status: string | undefined; live: boolean }>;
    "htmx:after:swap": HtmxEvent;
}
