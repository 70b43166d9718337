// The link of `fedq up` holds the key in the fragment, which browsers do not send: move it from the address into the form and post it.
// A browser that is signed in continues: a link from another site does not carry the cookie, this request does. Pages redirect strangers, where /v1 answers
// with an error, which browsers log.
import { byId } from "./elements.js";

const form = byId("sign-in", HTMLFormElement);
const fields = /** @type {{ key: HTMLInputElement, next: HTMLInputElement }} */ (
  /** @type {unknown} */ (form.elements)
);
const key = decodeURIComponent(location.hash.slice(1));

async function signIn() {
  history.replaceState(null, "", location.pathname + location.search);
  fields.key.value = key;
  const answer = await fetch("/sign-in", {
    method: "POST",
    body: new URLSearchParams({ key, next: fields.next.value }),
    redirect: "manual",
  });
  // In place of this page, so that the way back leads past it.
  if (answer.type === "opaqueredirect") location.replace(fields.next.value);
  else form.requestSubmit();
}

if (key.startsWith("fq_")) {
  await signIn();
} else if ((await fetch("/keys", { headers: { Accept: "text/html" }, redirect: "manual" })).ok) {
  location.replace(fields.next.value);
}
