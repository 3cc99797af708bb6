// Sessions, what waits for an answer, and decisions as they are made.

import { post } from "./api.js";
import { age, confirm, el, number, say, size } from "./dom.js";
import { row } from "./events.js";

const ACTS = {
  revoke: ["Revoke", "Its connections are cut for good. The sandbox goes on without a network."],
  stop: ["Stop", "The sandbox and all its programs end."],
  resume: ["Resume", "Its connections pass again, although a decoy was sent."],
};
let parts = null;
let drawn = "";

export function open(main, state) {
  parts = { asks: el("section"), sessions: el("section"), stream: el("section") };
  drawn = "";
  main.append(...Object.values(parts));
  update("sessions", state);
  update("log", state);
}

export function leave() { parts = null; }

export function update(event, state) {
  if (!parts) return;
  if (event === "log") return drawStream(state.log);
  const text = JSON.stringify([state.sessions, state.problem]);
  // Drawn only when it has changed: a button must not move under the pointer.
  if (text === drawn) return;
  drawn = text;
  drawSessions(state);
}

function drawSessions({ sessions, problem }) {
  const content = sessions.length
    ? el("div", { class: "cards" }, sessions.map(card))
    : el("p", { class: "empty" }, "No session is open: ", el("code", {}, "keyhole run -- CMD"),
      " opens one.");
  parts.sessions.replaceChildren(
    el("h2", {}, `Sessions (${sessions.length})`),
    problem ? el("p", { class: "deny", role: "alert" }, problem) : "", content);
}

function card(session) {
  const now = Date.now() / 1000;
  const good = session.state === "open";
  return el("article", { class: "card", "data-session": session.id },
    el("header", {},
      el("h3", {}, el("code", {}, session.label || "–")),
      el("span", { class: good ? "allow" : "deny" }, session.state)),
    el("dl", {}, [
      ["session", `${session.id}${session.name ? ` (${session.name})` : ""}`],
      ["gateway", session.own ? "own" : "shared"],
      ["policy", session.policy],
      ["age", age(now - session.opened)],
      ["ends in", session.expires ? age(session.expires - now) : ""],
      ["allowed", number(session.requests)], ["denied", number(session.denied)],
      ["connections", number(session.connections)],
      ["bytes", `${size(session.up)} up, ${size(session.down)} down`],
      ["secrets", session.secrets.join(", ")],
      ["granted", session.grants.map((each) => `${each.host} (${each.uses} uses)`).join(", ")],
    ].filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    session.budgets.map(budget),
    el("footer", {},
      good ? button(session, "revoke") : "",
      session.state === "frozen" ? button(session, "resume") : "", button(session, "stop")));
}

function budget({ name, used, limit }) {
  const amount = /\.?(upload|download)$/.test(name) ? size : number;
  const text = `${name}: ${amount(used)} of ${amount(limit)}`;
  return el("div", {}, el("small", { class: used >= limit ? "deny" : "quiet" }, text),
    el("progress", { max: String(Math.max(limit, 1)), value: String(Math.min(used, limit)), "aria-label": text }));
}

function button(session, act) {
  const [label, text] = ACTS[act];
  const label2 = `${label} session ${session.id}`;
  const run = async () => {
    try {
      await post(`/api/sessions/${session.id}/${act}`);
    } catch (error) {
      say(`${label2}: ${error.message}`);
    }
  };
  const ask = () => confirm(`${label} ${session.label}?`, text, label, run);
  return el("button", { type: "button", class: "danger", "aria-label": label2, onclick: ask }, label);
}

function drawStream(log) {
  // The reader's place is kept while the pointer or the focus is in the list.
  if (parts.stream.matches(":hover, :focus-within") && parts.stream.children.length) return;
  const events = [...log.events].reverse();
  parts.stream.replaceChildren(
    el("h2", {}, "Decisions"),
    events.length
      ? el("div", { class: "stream" }, events.map(row))
      : el("p", { class: "empty" }, "Nothing was decided yet."));
}
