// The log: filters, and a list of any length of which only the visible rows are in the page.

import { get } from "./api.js";
import { el, number } from "./dom.js";
import { details, parts } from "./events.js";

const PAGE = 100;
const MOST_PAGES = 40;
const TALLEST = 8_000_000; // pixels: browsers draw no taller element
const SINCE = { "": "any time", 900: "15 minutes", 3600: "hour", 86400: "day", 604800: "week" };

let list = null;

export async function open(main, state) {
  main.className = "full";
  list = new List(main, state);
  list.reload();
  const choices = await get("/api/choices");
  list?.offer(choices);
}

export function leave() { list?.close(); list = null; }

export function update(event, state) {
  if (event === "log") list?.grown(state.log);
}

class List {
  constructor(main, state) {
    this.filters = {};
    this.total = 0; // rows of the view that are shown; newer ones wait until asked for
    this.known = state.log.total;
    this.generation = null;
    this.pages = new Map();
    this.active = 0;
    this.rows = [];
    this.spacer = el("div", { class: "spacer" });
    this.scroller = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Events, the newest first; arrow keys move" }, this.spacer);
    this.note = el("p", { class: "note", role: "status" });
    this.fresh = el("button", { type: "button", hidden: true, onclick: () => this.newest() });
    this.form = this.makeForm();
    main.append(this.form, el("div", {}, this.note, this.fresh), this.scroller);
    this.scroller.addEventListener("scroll", () => this.draw());
    this.scroller.addEventListener("keydown", (event) => this.keys(event));
    this.resized = new ResizeObserver(() => { this.measure(); this.draw(); });
    this.resized.observe(this.scroller);
    this.measure();
  }

  makeForm() {
    const field = (label, input) => el("label", {}, label, input);
    const choose = (name, options) => el("select", { name },
      options.map(([value, text]) => el("option", { value }, text)));
    const form = el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search", el("input", { name: "text", type: "search", maxlength: "256" })),
      field("Host", el("input", { name: "host", placeholder: "part, or *.name", maxlength: "256" })),
      field("Verdict", choose("verdict", [["", "all"], ["deny", "denied"], ["allow", "allowed"]])),
      field("Service", choose("service", [["", "all"]])),
      field("Kind", choose("kind", [["", "all"]])),
      field("Session", choose("session", [["", "all"]])),
      field("Time", choose("since", Object.entries(SINCE).sort(([a], [b]) => a - b))));
    let timer = 0;
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.filter(), 250);
    });
    return form;
  }

  offer(choices) {
    for (const [name, texts] of [["service", choices.services], ["kind", choices.kinds], ["session", choices.sessions]]) {
      this.form.elements[name].append(...texts.map((text) => el("option", { value: text }, text)));
    }
  }

  filter() {
    const given = Object.fromEntries(new FormData(this.form));
    if (given.since) given.since = String(Math.floor(Date.now() / 1000 - Number(given.since)));
    this.filters = given;
    this.scroller.scrollTop = 0;
    this.reload();
  }

  close() { this.resized.disconnect(); this.closed = true; }

  async reload() {
    this.pages.clear();
    this.waiting?.abort();
    this.note.textContent = "looking…";
    const wanted = this.filters;
    const page = await get("/api/log", { ...wanted, count: PAGE });
    if (this.closed || wanted !== this.filters) return;
    this.generation = page.generation;
    this.total = page.total;
    this.keep(page);
    this.fresh.hidden = true;
    this.describe(page);
    this.draw();
  }

  // Pages are numbered from the oldest event on, which keep their numbers as the log grows.
  keep(page) {
    page.events.forEach((event, place) => {
      const position = page.first + place;
      const number = Math.floor(position / PAGE);
      if (!this.pages.has(number)) this.pages.set(number, []);
      this.pages.get(number)[position % PAGE] = event;
    });
    for (const number of this.pages.keys()) {
      if (this.pages.size <= MOST_PAGES) break;
      this.pages.delete(number);
    }
  }

  describe(page) {
    const words = [`${number(page.total)} event${page.total === 1 ? "" : "s"}`];
    if (page.unsearched) words.push(`${number(page.unsearched)} older ones were not searched: choose a time`);
    if (page.partial) words.push("older events are on disk only: keyhole log");
    if (page.unreadable) words.push(`${number(page.unreadable)} lines are no events: keyhole log verify`);
    this.note.textContent = words.join("; ");
  }

  grown(log) {
    if (this.generation !== null && log.generation !== this.generation) return this.reload();
    if (log.total <= this.known) return;
    const more = log.total - this.known;
    const filtered = Object.values(this.filters).some(Boolean);
    if (this.scroller.scrollTop < 4 && !filtered && this.active === 0) {
      this.known = log.total;
      this.reload();
    } else {
      this.fresh.textContent = `${number(more)} newer event${more === 1 ? "" : "s"}: show`;
      this.fresh.hidden = false;
    }
  }

  newest() {
    this.active = 0;
    this.scroller.scrollTop = 0;
    this.known = Infinity;
    this.reload().then(() => { this.known = this.total; });
  }

  measure() {
    this.height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 34;
    this.visible = Math.ceil(this.scroller.clientHeight / this.height) + 1;
  }

  // The row at the top, and how many pixels of it are above the edge.
  top() {
    const whole = this.total * this.height;
    const tall = Math.min(whole, TALLEST);
    const room = Math.max(1, tall - this.scroller.clientHeight);
    const far = Math.min(this.scroller.scrollTop, room);
    const pixels = whole > TALLEST ? (far / room) * (whole - this.scroller.clientHeight) : far;
    return { first: Math.floor(pixels / this.height), above: pixels % this.height, tall };
  }

  draw() {
    const { first, above, tall } = this.top();
    this.spacer.style.height = `${tall}px`;
    const rows = [];
    const missing = new Set();
    const last = Math.min(this.total, first + this.visible);
    for (let place = first; place < last; place += 1) {
      const position = this.total - 1 - place;
      const event = this.pages.get(Math.floor(position / PAGE))?.[position % PAGE];
      if (!event) missing.add(Math.floor(position / PAGE));
      const row = el("button", {
        type: "button", class: "row", tabindex: "-1", "data-place": place,
        onclick: () => { this.active = place; if (event) details(event); },
      }, event ? parts(event) : el("span", { class: "quiet rest" }, "…"));
      row.style.top = `${this.scroller.scrollTop + (place - first) * this.height - above}px`;
      rows.push(row);
    }
    const focused = document.activeElement?.dataset?.place;
    this.spacer.replaceChildren(...rows);
    if (focused !== undefined) {
      (this.spacer.querySelector(`[data-place="${Number(focused)}"]`) ?? this.scroller).focus({ preventScroll: true });
    }
    if (missing.size) this.fetch(missing);
  }

  fetch(missing) {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      this.waiting?.abort();
      this.waiting = new AbortController();
      const { signal } = this.waiting;
      try {
        for (const number of missing) {
          const first = number * PAGE;
          this.keep(await get("/api/log", { ...this.filters, first, count: PAGE }, signal));
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        throw error;
      }
      if (!this.closed) this.draw();
    }, 40);
  }

  keys(event) {
    const many = Math.max(1, this.visible - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: many, PageUp: -many, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.active = Math.min(Math.max(this.active + step, 0), Math.max(0, this.total - 1));
    const { first } = this.top();
    if (this.active < first || this.active > first + this.visible - 3) this.scrollTo(this.active);
    this.draw();
    this.spacer.querySelector(`[data-place="${this.active}"]`)?.focus({ preventScroll: true });
  }

  scrollTo(place) {
    const whole = this.total * this.height;
    const tall = Math.min(whole, TALLEST);
    const pixels = Math.max(0, place * this.height);
    const room = tall - this.scroller.clientHeight;
    this.scroller.scrollTop = whole > TALLEST
      ? (pixels / (whole - this.scroller.clientHeight)) * room : pixels;
  }
}

