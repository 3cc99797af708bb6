// One event of the log as a row, and all of it as a dialog.

import { get } from "./api.js";
import { byId, clock, el, show } from "./dom.js";

const SKIPPED = new Set(["port", "method", "path", "service"]);

export function place(event) {
  const port = event.details.port;
  return event.host ? `${event.host}${port && port !== 443 ? `:${port}` : ""}` : "–";
}

export function what(event) {
  const { method, path } = event.details;
  const rest = Object.entries(event.details)
    .filter(([name]) => !SKIPPED.has(name))
    .map(([name, value]) => `${name}=${value}`);
  return [method, path, event.reason, event.times > 1 ? `×${event.times}` : "", ...rest]
    .filter(Boolean).join(" ");
}

// The parts of a row; a row is a button, so that a keyboard opens it too.
export function parts(event) {
  if (event.gone) return [el("span", { class: "quiet rest" }, "this event's file was removed")];
  const { day, time } = clock(event.at);
  return [
    el("span", { class: "quiet", title: event.ts }, el("span", { class: "kind" }, `${day} `), time),
    el("span", { class: event.verdict }, event.verdict),
    el("span", { class: "kind" }, event.kind),
    el("span", {}, place(event)),
    el("span", { class: "rest" }, what(event)),
  ];
}

export function row(event) {
  return el("button", { type: "button", class: "row", onclick: () => details(event) }, parts(event));
}

export function details(event) {
  if (event.gone) return;
  const dialog = byId("dialog");
  const rows = [
    ["time", event.ts], ["session", event.session], ["kind", event.kind],
    ["reason", `${event.says} (${event.reason})`], ["rule", event.rule], ["host", event.host],
    ["times", event.times > 1 ? event.times : ""], ...Object.entries(event.details),
    ["hint", event.verdict === "deny" ? event.hint : ""],
  ];
  const list = el("dl", {}, rows.filter(([, value]) => value !== "").map(([name, value]) =>
    [el("dt", {}, name), el("dd", { class: "mono" }, value)]));
  const why = event.why
    ? [el("h3", {}, "Ask again, by the policy of now"), el("pre", {}, el("code", {}, event.why))]
    : [];
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const title = [el("span", { class: event.verdict }, event.verdict), ` ${place(event)}`];
  show(title, el("div", {}, list, why), [close], close);
  if (event.rule) addLine(event, list);
}

// Where the rule stands in the policy of now; nothing for a session that is over.
async function addLine({ session, rule }, list) {
  const { line } = await get("/api/rule", { session, rule });
  if (line) list.append(el("dt", {}, "line"), el("dd", { class: "mono" }, line));
}
