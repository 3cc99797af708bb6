// Sessions, what waits for an answer, and decisions as they are made.

import { post } from "./api.js";
import { age, confirm, el, money, number, say, show, size, unit } from "./dom.js";
import { row } from "./events.js";

const ACTS = {
  revoke: ["Revoke", "Its connections are cut for good. The sandbox goes on without a network."],
  stop: ["Stop", "The sandbox and all its programs end."],
  resume: ["Resume", "Its connections pass again, although a decoy was sent."],
};
// No comes first. A yes is given by a button that a person moves to.
const ANSWERS = [
  ["no", 0, "No", ""], ["once", 0, "Once", "yes"], ["for", 600, "10 minutes", "yes"],
  ["session", 0, "This session", "yes"], ["always", 0, "Always…", "yes"], ["never", 0, "Never", "danger"],
  ["no-to-all", 0, "No to all of this session", "danger"],
];
// Milliseconds in which a question that is new, or has moved, takes no answer: a click may be on its
// way, and the second of a double click is.
const SETTLE = 600;
const cards = new Map();
const timers = new WeakMap();
let parts = null;
let drawn = "";

export function open(main, state) {
  parts = { asks: el("section"), sessions: el("section"), stream: el("section") };
  drawn = "";
  main.append(...Object.values(parts));
  update("asks", state);
  update("sessions", state);
  update("log", state);
}

export function leave() { parts = null; cards.clear(); }

export function update(event, state) {
  if (!parts) return;
  if (event === "log") return drawStream(state.log);
  if (event === "asks") return drawAsks(state);
  const text = JSON.stringify([state.sessions, state.problem]);
  // Drawn only when it has changed: a button must not move under the pointer.
  if (text === drawn) return;
  drawn = text;
  drawSessions(state);
}

// Questions keep their place and their buttons while they wait: a new one comes last.
function drawAsks({ asks, more, sessions }) {
  const known = new Set(asks.map((ask) => `${ask.session} ${ask.id}`));
  const gone = [...cards].filter(([key]) => !known.has(key));
  for (const [key, card] of gone) { card.remove(); cards.delete(key); }
  if (gone.length) cards.forEach(settle);
  if (!asks.length) return parts.asks.replaceChildren();
  if (!parts.asks.children.length) {
    parts.asks.append(el("h2", { "aria-live": "polite" }), el("div", { class: "cards" }));
  }
  const [title, list] = parts.asks.children;
  title.textContent = `Waiting for your answer (${number(asks.length + more)})`;
  for (const ask of asks) {
    const key = `${ask.session} ${ask.id}`;
    const label = sessions.find((each) => each.id === ask.session)?.label ?? "";
    if (!cards.has(key)) {
      const made = askCard(ask, label);
      cards.set(key, made);
      list.append(made);
    }
    const left = Math.max(0, Math.round(ask.expires - Date.now() / 1000));
    cards.get(key).querySelector(".left").textContent = ask.state === "pending"
      ? `${left} s left${ask.waiting > 1 ? `, ${number(ask.waiting)} wait` : ""}`
      : "refused meanwhile; a yes serves the next try";
  }
  return null;
}

function askCard(ask, label) {
  // A budget is raised by hand, in the policy.
  const answers = ANSWERS.filter(([answer]) => answer !== "always" || ask.kind !== "budgets");
  const buttons = answers.map(([answer, seconds, text, kind]) => el("button", {
    type: "button", class: kind, "aria-label": `${text}: ${ask.words}`,
    onclick: () => (answer === "always" ? always(ask, buttons) : reply(ask, answer, seconds, buttons)),
  }, text));
  const card = el("article", { class: "card ask", "data-ask": ask.id },
    el("p", {}, "Wants to ", el("strong", { class: "mono" }, ask.words)),
    ask.marks.map((mark) => el("p", { class: "warn" }, `! ${mark}`)),
    el("p", { class: "quiet" }, `session ${ask.session} `, el("code", {}, label), " · ", el("span", { class: "left" })),
    el("footer", {}, buttons));
  settle(card);
  return card;
}

function settle(card) {
  const buttons = card.querySelectorAll("button");
  buttons.forEach((each) => { each.disabled = true; });
  clearTimeout(timers.get(card));
  timers.set(card, setTimeout(() => buttons.forEach((each) => { each.disabled = false; }), SETTLE));
}

function always(ask, buttons) {
  const text = `This is written into the policy of the session, and accepted: ${ask.rule}`;
  confirm(`Always ${ask.words}?`, text, "Write the rule", () => reply(ask, "always", 0, buttons));
}

async function reply(ask, answer, seconds, buttons) {
  buttons.forEach((each) => { each.disabled = true; });
  try {
    const { changed } = await post(`/api/asks/${ask.session}/${ask.id}`, { answer, seconds });
    if (changed.length) {
      const close = el("button", { type: "button", onclick: (event) => event.target.closest("dialog").close() }, "Close");
      show("Written into the policy", el("pre", {}, el("code", {}, changed.join("\n"))), [close], close);
    }
  } catch (error) {
    say(`${ask.words}: ${error.message}`);
    buttons.forEach((each) => { each.disabled = false; });
  }
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
      ["spent", spent(session)],
      ["secrets", session.secrets.join(", ")],
      ["granted", session.grants.map((each) => `${each.host} (${each.uses} uses)`).join(", ")],
    ].filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    session.budgets.map(budget),
    el("footer", {},
      good ? button(session, "revoke") : "",
      session.state === "frozen" ? button(session, "resume") : "", button(session, "stop")));
}

// What has no known price says so.
function spent({ spent: known, unpriced }) {
  const words = known ? [money(known)] : [];
  if (unpriced) words.push(`${number(unpriced)} tokens without a known price`);
  return words.join(", and ");
}

function budget({ name, used, limit }) {
  const amount = unit(name);
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
