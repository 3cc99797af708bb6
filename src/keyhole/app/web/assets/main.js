// Opens the link, keeps the live stream, and shows one page at a time.

import { follow, login } from "./api.js";
import { byId, el, say } from "./dom.js";
import * as log from "./log.js";
import * as now from "./now.js";
import * as policy from "./policy.js";
import * as services from "./services.js";
import * as usage from "./usage.js";

const PAGES = { now, log, policy, usage, services };
const TITLES = { now: "Now", log: "Log", policy: "Policy", usage: "Usage", services: "Services" };
const KEY = /^#[A-Za-z0-9_-]{43}$/;
const NEW_LINK = "Press Enter in the terminal where `keyhole web` runs for a new link.";

export const state = { sessions: [], problem: "", asks: [], more: 0, log: { total: 0, events: [] } };
let shown = null;

function name() {
  const found = location.hash.slice(1).split("?")[0];
  return Object.hasOwn(PAGES, found) ? found : "now";
}

function navigate() {
  const page = name();
  for (const link of byId("nav").children) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shown?.leave?.();
  shown = PAGES[page];
  const main = byId("main");
  main.className = "";
  main.replaceChildren();
  document.title = `${TITLES[page]} – Keyhole`;
  shown.open(main, state);
}

function told(event, value) {
  if (event === "sessions" || event === "asks") Object.assign(state, value);
  if (event === "log") state.log = value;
  shown?.update?.(event, state);
  const asks = state.asks.length;
  document.title = `${asks ? `(${asks}) ` : ""}${TITLES[name()]} – Keyhole`;
}

async function live() {
  const line = byId("link-state");
  for (;;) {
    try {
      await follow(told, () => { line.textContent = "live"; line.className = "allow"; });
    } catch (error) {
      if (error.status === 401) return refused("This page is no longer known.");
    }
    line.textContent = "not connected: is `keyhole web` still running?";
    line.className = "deny";
    await new Promise((done) => { setTimeout(done, 1000); });
  }
}

function refused(text) {
  byId("link-state").textContent = "not connected";
  byId("nav").replaceChildren();
  byId("main").replaceChildren(el("h2", {}, text), el("p", {}, NEW_LINK));
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("dialog").open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const page = Object.keys(PAGES)[Number(event.key) - 1];
  if (page) location.hash = page;
  if (event.key === "/") {
    event.preventDefault();
    if (name() !== "log") location.hash = "log";
    setTimeout(() => document.querySelector("input[name=text]")?.focus());
  }
}

async function start() {
  const key = location.hash;
  // Out of the address bar and the history before anything else.
  history.replaceState(null, "", "/");
  if (!KEY.test(key)) return refused("This page is opened by a link that works once.");
  try {
    await login(key.slice(1));
  } catch (error) {
    return refused(error.status === 403 ? "This link was used, or is too old." : error.message);
  }
  byId("nav").append(...Object.keys(PAGES).map((page, place) =>
    el("a", { href: `#${page}`, "data-page": page, title: `key ${place + 1}` }, TITLES[page])));
  addEventListener("hashchange", navigate);
  addEventListener("keydown", keys);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // its fragment would be taken for a page
    byId("main").focus();
  });
  addEventListener("unhandledrejection", (event) => say(String(event.reason?.message ?? "failed")));
  navigate();
  return live();
}

start();
