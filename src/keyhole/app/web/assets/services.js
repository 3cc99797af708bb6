// The catalogue: which hosts a service has, and what is written and allowed there.

import { get } from "./api.js";
import { el } from "./dom.js";

export async function open(main) {
  const list = el("div", { class: "cards" });
  let services = [];
  const draw = (text) => {
    const wanted = text.toLowerCase();
    list.replaceChildren(...services.filter((each) => JSON.stringify(each).toLowerCase().includes(wanted)).map(service));
  };
  main.append(
    el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", {}, "Search", el("input", { type: "search", name: "text", oninput: (event) => draw(event.target.value) }))),
    list);
  services = await get("/api/services");
  draw("");
}

function service(each) {
  return el("article", { class: "card" },
    el("header", {}, el("h3", {}, el("code", {}, each.name)), el("span", { class: "quiet" }, each.kind)),
    el("p", {}, each.title),
    each.notes.map((note) => el("p", { class: "quiet" }, note)),
    el("details", {}, el("summary", {}, each.hosts[0]?.hosts.join(", ") ?? ""),
      each.hosts.map((host) => el("dl", {},
        [["hosts", host.hosts], ["written", host.inject], ["allowed", host.allow], ["guarded", host.deny]]
          .filter(([, values]) => values.length)
          .map(([name, values]) => [el("dt", {}, name), el("dd", { class: "mono" }, values.join(", "))])))));
}
