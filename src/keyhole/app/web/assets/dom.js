// Elements are made of text nodes and properties alone: no text is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const el = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

export const byId = (id) => document.getElementById(id);

export function age(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))}s`;
}

export function size(bytes) {
  let unit = 0;
  while (bytes >= 1023.5 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit && bytes < 9.95 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// Billionths of a dollar as a person reads them: in cents, and small amounts in parts of one.
export function money(nano) {
  const amount = nano / 1e9;
  if (!nano || amount >= 0.1) return `${amount.toFixed(2)} USD`;
  return amount >= 1e-6 ? `${amount.toFixed(6)} USD` : "<0.000001 USD";
}

const MONEY = /\.budget\.(session|day|month)$/;
const BYTES = /\.budget\.(upload|download)$/;

// How an amount of this budget is shown: its name tells the unit.
export const unit = (name) => (MONEY.test(name) ? money : BYTES.test(name) ? size : number);

export const number = (value) => value.toLocaleString("en").replaceAll(",", "\u202f");

export function clock(at) {
  const time = new Date(at * 1000);
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`;
  return { day, time: `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}` };
}

let hiding = 0;

export function say(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { toast.hidden = true; }, 6000);
}

// A dialog; `focus` is the element that has the focus first: never one that says yes.
export function show(title, content, buttons, focus) {
  const dialog = byId("dialog");
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, title), content, el("div", { class: "buttons" }, buttons));
  dialog.showModal();
  focus.focus();
}

export function confirm(title, text, yes, act) {
  const close = () => byId("dialog").close();
  const no = el("button", { type: "button", onclick: close }, "Cancel");
  const button = el("button", {
    type: "button", class: "danger", onclick: () => { close(); act(); },
  }, yes);
  show(title, el("p", {}, text), [no, button], no);
}
