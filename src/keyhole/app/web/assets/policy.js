// The policies that sessions run under: what each grants, and its text.

import { get } from "./api.js";
import { el } from "./dom.js";

export async function open(main) {
  main.append(el("h2", {}, "Policies"));
  const policies = await get("/api/policies");
  if (!policies.length) {
    main.append(el("p", { class: "empty" }, "No session is open, and there is no policy here."));
  }
  main.append(...policies.map(policy));
}

function policy(each) {
  const accepted = each.accepted
    ? el("span", { class: "allow" }, "accepted")
    : el("span", { class: "warn" }, "not accepted: keyhole policy trust shows it and asks");
  return el("section", { class: "card" },
    el("header", {}, el("h3", {}, el("code", {}, each.path)), each.faults.length ? "" : accepted),
    each.faults.map((fault) => el("p", { class: "deny mono" }, fault)),
    each.notes.map((note) => el("p", { class: "warn mono" }, `note: ${note}`)),
    each.grants.length ? grants(each.grants) : "",
    each.text ? el("details", {}, el("summary", {}, "The file"), el("pre", {}, el("code", {}, each.text.join("\n")))) : "");
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
