// A chart of stacked bars, one bar for each step of time, and the same numbers as a table.

import { clock, el, svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 140;
const EDGE = 4;

const sum = (values) => values.reduce((one, other) => one + other, 0);

export function chart(usage, measure, title, amount) {
  const steps = usage.series[0]?.[measure].length ?? 0;
  const sums = Array.from({ length: steps }, (_, step) =>
    sum(usage.series.map((series) => series[measure][step])));
  const most = Math.max(1, ...sums);
  const width = (WIDTH - 2) / Math.max(1, steps);
  const bars = [];
  for (let step = 0; step < steps; step += 1) {
    let bottom = HEIGHT - EDGE;
    usage.series.forEach((series, place) => {
      const value = series[measure][step];
      if (!value) return;
      const height = Math.max(1, (value / most) * (HEIGHT - 2 * EDGE));
      bottom -= height;
      bars.push(svg("rect", {
        class: `f${place}`, x: 1 + step * width, y: bottom, width: Math.max(1, width - 1.5), height,
      }, svg("title", {}, `${series.name}: ${amount(value)}`)));
    });
  }
  const begin = clock(usage.start);
  const end = clock(usage.start + usage.step * steps);
  const whole = amount(sum(sums));
  const peak = steps && sum(sums) ? `at most ${amount(Math.max(0, ...sums))} in a step` : "nothing";
  return el("figure", {},
    svg("svg", {
      class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}: ${whole} in all, ${peak}; the table below has the numbers`,
    }, bars),
    el("figcaption", {}, el("span", {}, steps ? `${begin.day} ${begin.time}` : ""),
      el("span", {}, peak), el("span", {}, steps ? `${end.day} ${end.time}` : "")),
    table(usage, measure, title, amount, sums));
}

// Steps in which nothing happened are left out.
function table(usage, measure, title, amount, sums) {
  const busy = sums.flatMap((value, step) => (value ? [step] : []));
  if (!busy.length) return "";
  const series = usage.series.filter((each) => sum(each[measure]));
  const time = (step) => { const at = clock(usage.start + usage.step * step); return `${at.day} ${at.time}`; };
  const head = (text) => el("th", { scope: "col", class: "number" }, text);
  return el("details", {}, el("summary", {}, `${title} as a table`),
    el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": `${title} as a table` },
      el("table", {},
        el("caption", {}, `${title}, from each time on for ${Math.round(usage.step)} seconds`),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Time"),
          series.map((each) => head(each.name)), head("All"))),
        el("tbody", {}, busy.map((step) => el("tr", {}, el("th", { scope: "row" }, time(step)),
          series.map((each) => el("td", { class: "number" }, amount(each[measure][step]))),
          el("td", { class: "number" }, amount(sums[step]))))))));
}
