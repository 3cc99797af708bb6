// The policies that sessions run under: what each grants, and its text, which can be changed here.

import { get, post } from "./api.js";
import { confirm, el, say } from "./dom.js";

let main = null;

export async function open(page) {
  main = page;
  main.append(el("h2", {}, "Policies"));
  const policies = await get("/api/policies");
  if (!main) return;
  if (!policies.length) {
    main.append(el("p", { class: "empty" }, "No session is open, and there is no policy here."));
  }
  main.append(...policies.map(policy));
}

export function leave() { main = null; }

function reload() {
  if (!main) return;
  const page = main;
  page.replaceChildren();
  open(page);
}

function policy(each) {
  const accepted = each.accepted
    ? el("span", { class: "allow" }, "accepted")
    : el("span", { class: "warn" }, "not accepted as it is now");
  const place = el("div");
  const edit = el("button", {
    type: "button", "aria-label": `Edit or accept… ${each.path}`, onclick: () => editor(each, place, edit),
  }, "Edit or accept…");
  return el("section", { class: "card" },
    el("header", {}, el("h3", {}, el("code", {}, each.path)), each.faults.length ? "" : accepted),
    each.faults.map((fault) => el("p", { class: "deny mono lines" }, fault)),
    each.notes.map((note) => el("p", { class: "warn mono lines" }, `note: ${note}`)),
    each.grants.length ? grants(each.grants) : "",
    each.text ? el("details", {}, el("summary", {}, "The file"), el("pre", { tabindex: "0" }, el("code", {}, each.text.join("\n")))) : "",
    el("footer", {}, edit), place);
}

// The text is written only after its check was shown, by a button that a person moves to.
async function editor(each, place, button) {
  let read;
  try {
    read = await get(`/api/policies/${each.id}`);
  } catch (error) {
    say(`${each.path}: ${error.message}`);
    return;
  }
  button.disabled = true;
  const result = el("div", { role: "status", class: "checked" });
  const area = el("textarea", {
    rows: "18", spellcheck: "false", dir: "ltr", autocomplete: "off", wrap: "off",
    oninput: () => result.replaceChildren(),
  });
  area.value = read.text;
  const close = () => { place.replaceChildren(); button.disabled = false; button.focus(); };
  const check = async () => {
    const text = area.value;
    try {
      const found = await post(`/api/policies/${each.id}/check`, { text, base: read.base });
      if (area.value === text) result.replaceChildren(...checked(each, read, text, found));
    } catch (error) {
      result.replaceChildren(el("p", { class: "deny" }, error.message));
    }
  };
  place.replaceChildren(
    read.hidden ? el("p", { class: "warn" }, "! The text has hidden or reordering characters; the check shows them as codes.") : "",
    el("label", { class: "edit" }, `Text of ${each.path}`, area),
    el("div", { class: "buttons" },
      el("button", { type: "button", onclick: check }, "Check"),
      el("button", { type: "button", onclick: close }, "Cancel")),
    result);
  area.focus();
}

function checked(each, read, text, found) {
  if (found.faults.length) {
    return [el("h4", {}, "It cannot be used"), ...found.faults.map((fault) => el("p", { class: "deny mono lines" }, fault))];
  }
  const save = async () => {
    try {
      await post(`/api/policies/${each.id}/save`, { text, base: read.base, digest: found.digest });
      say(`${each.path} is accepted`);
      reload();
    } catch (error) {
      say(`${each.path}: ${error.message}`);
    }
  };
  const words = found.same ? "Accept this file" : "Write and accept";
  const ask = () => confirm(`${words}?`,
    `${each.path}: sandboxes that run under it go on with these grants.`, words, save);
  return [
    el("h4", {}, found.accepted ? "It is accepted, and grants" : "It would grant"),
    found.grants.length ? grants(found.grants) : el("p", {}, "Nothing."),
    el("h4", {}, "Changes since it was accepted"),
    found.changes.length ? diff(found.changes) : el("p", { class: "quiet" }, "None."),
    found.accepted && found.same ? "" : el("div", { class: "buttons" },
      el("button", { type: "button", class: "danger", onclick: ask }, `${words}…`)),
  ];
}

function diff(lines) {
  const kind = (line) => (line.startsWith("+") ? "allow" : line.startsWith("-") ? "deny" : "quiet");
  return el("pre", { tabindex: "0", "aria-label": "Changes" },
    el("code", {}, lines.map((line) => el("span", { class: `line ${kind(line)}` }, `${line}\n`))));
}

function grants(lines) {
  let last = null;
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "For"), el("th", { scope: "col" }, "Grants"))),
    el("tbody", {}, lines.map((line) => {
      const subject = line.subject === last ? "" : line.subject;
      last = line.subject;
      return el("tr", {}, el("th", { scope: "row" }, subject),
        el("td", {}, line.text, line.alarm ? el("div", { class: "warn" }, `! ${line.alarm}`) : ""));
    })));
}
