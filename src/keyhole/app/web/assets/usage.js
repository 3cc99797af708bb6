// Usage over time, by service or session, as small charts with a table of the same numbers.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { el, number, size } from "./dom.js";

const MEASURES = [["requests", "Requests", number], ["denied", "Denied", number], ["bytes", "Bytes", size]];
let chosen = { by: "service", span: "hour" };
let content = null;

export async function open(main, state) {
  const select = (name, options) => el("select", { name, onchange: (event) => choose(name, event.target.value, state) },
    options.map(([value, text]) => el("option", { value, selected: chosen[name] === value }, text)));
  content = el("div");
  main.append(
    el("form", { class: "filters" },
      el("label", {}, "By", select("by", [["service", "service"], ["session", "session"]])),
      el("label", {}, "Last", select("span", [["hour", "hour"], ["day", "day"], ["week", "week"]]))),
    content);
  await draw(state);
}

export function leave() { content = null; }

function choose(name, value, state) {
  chosen = { ...chosen, [name]: value };
  draw(state);
}

async function draw(state) {
  const wanted = chosen;
  const usage = await get("/api/usage", wanted);
  if (!content || wanted !== chosen) return;
  content.replaceChildren(
    ...MEASURES.map(([name, title, amount]) => el("section", {},
      el("h2", {}, title), chart(usage, name, title, amount))),
    totals(usage), budgets(state.sessions));
}

function totals(usage) {
  const sum = (values) => values.reduce((one, other) => one + other, 0);
  if (!usage.series.length) return el("p", { class: "empty" }, "Nothing in this time.");
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Name"),
      MEASURES.map(([, title]) => el("th", { scope: "col", class: "number" }, title)))),
    el("tbody", {}, usage.series.map((series, place) => el("tr", {},
      el("th", { scope: "row" }, el("span", { class: `key f${place}` }), series.name),
      MEASURES.map(([name, , amount]) => el("td", { class: "number" }, amount(sum(series[name]))))))));
}

function budgets(sessions) {
  const rows = sessions.flatMap((session) => session.budgets.map((each) => [session, each]));
  if (!rows.length) return "";
  return el("section", {}, el("h2", {}, "Budgets of open sessions"),
    el("table", {},
      el("thead", {}, el("tr", {}, ["Session", "Budget", "Used", "Of"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.map(([session, { name, used, limit }]) => {
        const amount = /\.?(upload|download)$/.test(name) ? size : number;
        return el("tr", {}, el("td", {}, `${session.label} ${session.id}`), el("td", {}, name),
          el("td", {}, amount(used)), el("td", {}, amount(limit)));
      }))));
}
