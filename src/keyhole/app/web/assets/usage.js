// Usage over time, by service or session, as small charts with tables of the same numbers.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { el, money, number, size, unit } from "./dom.js";

const MEASURES = [
  ["requests", "Requests", number], ["denied", "Denied", number], ["bytes", "Bytes", size],
  ["tokens", "Tokens", number], ["money", "Money", money],
];
const SPANS = ["hour", "day", "week", "month"];
const sum = (values) => values.reduce((one, other) => one + other, 0);
let chosen = { by: "service", span: "day" };
let content = null;

export async function open(main, state) {
  const select = (name, options) => el("select", { name, onchange: (event) => choose(name, event.target.value, state) },
    options.map((value) => el("option", { value, selected: chosen[name] === value }, value)));
  content = el("div", { "aria-live": "polite" });
  main.append(
    el("h2", {}, "Usage"),
    el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      el("label", {}, "By", select("by", ["service", "session"])),
      el("label", {}, "Last", select("span", SPANS))),
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
  content.replaceChildren(totals(usage),
    ...MEASURES.map(([name, title, amount]) => el("section", {},
      el("h3", {}, title), chart(usage, name, title, amount))),
    budgets(state.sessions));
}

function totals(usage) {
  if (!usage.series.length) return el("p", { class: "empty" }, "Nothing in this time.");
  const unpriced = sum(usage.series.map((each) => each.unpriced));
  return el("section", {},
    el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Sums" },
      el("table", {},
        el("caption", {}, "Sums, and the colours of the charts"),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Name"),
          MEASURES.map(([, title]) => el("th", { scope: "col", class: "number" }, title)))),
        el("tbody", {}, usage.series.map((series, place) => el("tr", {},
          el("th", { scope: "row" }, el("span", { class: `key f${place}` }), series.name),
          MEASURES.map(([name, , amount]) => el("td", { class: "number" },
            amount(sum(series[name])), name === "money" && series.unpriced ? " + ?" : ""))))))),
    unpriced ? el("p", { class: "warn" },
      `? ${number(unpriced)} tokens are of models whose price is not known: prices in the policy or in config.toml say it.`) : "");
}

function budgets(sessions) {
  const rows = sessions.flatMap((session) => session.budgets.map((each) => [session, each]));
  if (!rows.length) return "";
  return el("section", {}, el("h3", {}, "Budgets of open sessions"),
    el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Budgets of open sessions" },
      el("table", {},
        el("thead", {}, el("tr", {}, ["Session", "Budget", "Used", "Of"].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", {}, rows.map(([session, { name, used, limit }]) => {
          const amount = unit(name);
          return el("tr", {}, el("td", {}, `${session.label} ${session.id}`), el("td", {}, name),
            el("td", {}, amount(used)), el("td", {}, amount(limit)));
        })))));
}
