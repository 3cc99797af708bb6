// A chart of stacked bars, one bar for each step of time.

import { clock, el, svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 140;
const EDGE = 4;

export function chart(usage, measure, title, amount) {
  const steps = usage.series[0]?.requests.length ?? 0;
  const sums = Array.from({ length: steps }, (_, step) =>
    usage.series.reduce((sum, series) => sum + series[measure][step], 0));
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
  const whole = amount(sums.reduce((one, other) => one + other, 0));
  const peak = steps ? `at most ${amount(Math.max(0, ...sums))} in a step` : "nothing";
  return el("figure", {},
    svg("svg", {
      class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}: ${whole} in all, ${peak}`,
    }, bars),
    el("figcaption", {}, el("span", {}, steps ? `${begin.day} ${begin.time}` : ""),
      el("span", {}, peak), el("span", {}, steps ? end.time : "")));
}
