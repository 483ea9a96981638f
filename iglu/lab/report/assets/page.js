"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/* -- theme ------------------------------------------------------------------------------------------ */

const root = document.documentElement;
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);

function showTheme() {
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  redrawAll();
}

byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, root.dataset.theme);
  } catch {
    // not remembered
  }
  showTheme();
});
systemIsDark.addEventListener("change", showTheme);

// Paper is white.
let themeOnScreen;
addEventListener("beforeprint", () => {
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  redrawAll();
});
addEventListener("afterprint", () => {
  if (themeOnScreen) root.dataset.theme = themeOnScreen;
  else delete root.dataset.theme;
  redrawAll();
});

/* -- explorer --------------------------------------------------------------------------------------- */

const VIEWS = {
  value: { label: "Function", axis: "f(x)", range: [-1, 4] },
  gate: { label: "Gate", axis: "f(x)/x", range: [-0.1, 1.1] },
  slope: { label: "First derivative", axis: "f′(x)", range: [-0.2, 1.2] },
  curvature: { label: "Second derivative", axis: "f″(x)", range: [-0.2, 0.9] },
  tail: { label: "Tail", axis: "|f′(x)|" },
};
const REACH = 4; // of x, at first

const explorer = {
  view: "value",
  sigma: 1,
  shown: new Set(DATA.explorer.activations.filter((each) => each.is_shown).map((each) => each.name)),
};

/** The common grid, and where u = sigma x is of order 1 as many points again, however narrow that is. */
function gridFor(sigma) {
  const near = Array.from({ length: 120 }, (_, i) => 10 ** (-2 + (i * 4) / 120) / sigma);
  const reach = -DATA.explorer.x[0];
  const extra = near.filter((x) => x < reach).flatMap((x) => [-x, x]);
  return DATA.explorer.x.concat(extra).sort((a, b) => a - b);
}

/** A step far greater than those beside it is a jump, and is left open. */
function withGaps(x, y) {
  const step = (i) => (i < 0 || i + 1 >= y.length ? 0 : Math.abs(y[i + 1] - y[i]));
  const [openX, openY] = [[], []];
  y.forEach((value, i) => {
    openX.push(x[i]);
    openY.push(value);
    if (step(i) > 0.02 && step(i) > 4 * (step(i - 1) + step(i + 1))) {
      openX.push((x[i] + x[i + 1]) / 2);
      openY.push(null);
    }
  });
  return { x: openX, y: openY };
}

function curveOf({ name, curves }, view, sigma) {
  const formula = FORMULAS[name];
  if (view === "tail") {
    const x = DATA.explorer.tail_x;
    const slopes = curves ? curves.tail : x.map((each) => formula.slope(each, sigma));
    // a logarithm has no 0
    return { x: x.map((each) => -each), y: slopes.map((slope) => Math.abs(slope) || null) };
  }
  const x = curves ? DATA.explorer.x : gridFor(sigma);
  const key = view === "gate" ? "value" : view;
  let y = curves ? curves[key] : x.map((each) => formula[key](each, sigma));
  if (view === "gate") y = y.map((value, i) => value / x[i]);
  return curves ? withGaps(x, y) : { x, y };
}

function explorerChart() {
  const { view, sigma, shown } = explorer;
  const chosen = DATA.explorer.activations
    .map((activation, index) => ({ activation, index }))
    .filter(({ activation }) => shown.has(activation.name))
    .filter(({ activation }) => view !== "gate" || activation.has_gate);
  const traces = chosen.map(({ activation, index }) => {
    const { variable, dash } = lineStyle(index);
    const isOurs = activation.name.startsWith("iglu");
    return {
      ...curveOf(activation, view, sigma),
      name: plain(activation.label), mode: "lines", hovertemplate: "%{y:.4~g}",
      line: { color: colour(variable), dash, width: isOurs ? 3 : 2 },
    };
  });
  const { axis, label, range } = VIEWS[view];
  const names = chosen.map(({ activation }) => activation.label).join(", ");
  return {
    traces,
    layout: view === "tail" ? tailLayout() : {
      uirevision: view,
      xaxis: { title: { text: "x" }, range: [-REACH, REACH], hoverformat: ".3~f" },
      yaxis: { title: { text: axis }, range: view === "value" ? range : reachOf(traces, range) },
    },
    label: `${label}, ${axis}, of ${names}; sigma is ${sigma}`,
  };
}

/** The range, widened to what the curves need. */
function reachOf(traces, [low, high]) {
  for (const { y } of traces) {
    for (const value of y) {
      if (value < low) low = value * 1.05;
      if (value > high) high = value * 1.05;
    }
  }
  return [low, high];
}

function tailLayout() {
  const half = DATA.explorer.smallest_half;
  const powers = { type: "log", exponentformat: "power", dtick: 1 };
  return {
    uirevision: "tail",
    xaxis: { title: { text: "|x|, for x < 0" }, range: [-1, 4], ...powers, hoverformat: ".3~g" },
    yaxis: { title: { text: "|f′(x)|" }, range: [-18, 1], ...powers, dtick: 3 },
    shapes: [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: half, y1: half,
      line: { color: colour("--axis"), dash: "dot", width: 1 },
    }],
    annotations: [{
      text: `float16 ends here: ${half.toExponential(1)}`, xref: "paper", x: 0.01, xanchor: "left",
      y: Math.log10(half), yanchor: "top", showarrow: false, font: { size: 12 },
    }],
  };
}

function explorerFact() {
  const { view, sigma } = explorer;
  const gateless = DATA.explorer.activations
    .filter(({ name, has_gate }) => explorer.shown.has(name) && !has_gate)
    .map(({ label }) => label);
  if (view === "gate" && gateless.length) {
    return `Not shown, since f(0) is not 0 and f(x)/x has a pole: ${gateless.join(", ")}.`;
  }
  const floors = [Math.PI, 2].map((factor) => (-1 / (factor * sigma)).toPrecision(3).replace("-", "−"));
  const [exact, approx] = [`−1/(πσ) = ${floors[0]}`, `−1/(2σ) = ${floors[1]}`];
  return `At σ = ${sigma}, IGLU stays above ${exact} and IGLU-Approx above ${approx}.`;
}

let isExplorerDue = false;
function updateExplorer() {
  if (isExplorerDue) return;
  isExplorerDue = true;
  requestAnimationFrame(() => {
    isExplorerDue = false;
    byId("floors").textContent = explorerFact();
    draw(byId("explorer-chart"), explorerChart);
  });
}

function setSigma(sigma) {
  const [least, most] = DATA.explorer.sigmas;
  explorer.sigma = Number(Math.min(Math.max(sigma, least), most).toPrecision(3));
  byId("sigma").setAttribute("aria-valuetext", String(explorer.sigma));
  updateExplorer();
}

byId("sigma").addEventListener("input", () => {
  setSigma(10 ** byId("sigma").valueAsNumber);
  byId("sigma-number").value = explorer.sigma;
});
byId("sigma-number").addEventListener("input", () => {
  const typed = byId("sigma-number").valueAsNumber;
  if (!(typed > 0)) return;
  setSigma(typed);
  byId("sigma").value = Math.log10(explorer.sigma);
});
byId("sigma-number").addEventListener("change", () => {
  byId("sigma-number").value = explorer.sigma;
});

for (const [view, { label }] of Object.entries(VIEWS)) {
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "view", value: view, checked: view === explorer.view });
  input.addEventListener("change", () => {
    explorer.view = view;
    updateExplorer();
  });
  const text = document.createElement("span");
  text.textContent = label;
  const element = document.createElement("label");
  element.append(input, text);
  byId("views").append(element);
}

DATA.explorer.activations.forEach(({ name, label, curves }, index) => {
  const element = chip({ label, style: lineStyle(index), isChecked: explorer.shown.has(name) }, (isChecked) => {
    explorer.shown[isChecked ? "add" : "delete"](name);
    updateExplorer();
  });
  byId(curves ? "takes-none" : "takes-sigma").append(element);
});
setSigma(explorer.sigma);

/* -- curves over epochs ----------------------------------------------------------------------------- */

/** By label: the colour that the explorer gives the activation, and a dash for each of its sigmas. */
function stylesOfCurves() {
  const known = DATA.explorer.activations.map((each) => each.name);
  const styles = new Map();
  const variants = new Map();
  for (const { activation, label } of DATA.curves) {
    if (styles.has(label)) continue;
    const family = activation.split(":")[0];
    if (!known.includes(family)) known.push(family);
    const variant = variants.get(family) ?? 0;
    variants.set(family, variant + 1);
    styles.set(label, lineStyle(known.indexOf(family), variant));
  }
  return styles;
}

const curveStyles = stylesOfCurves();
const hiddenCurves = new Set();

function bandOf({ epochs, low, high }, fillcolor) {
  const inside = epochs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const back = inside.slice().reverse();
  return {
    x: [...inside, ...back].map((i) => epochs[i]),
    y: [...inside.map((i) => high[i]), ...back.map((i) => low[i])],
    mode: "lines", fill: "toself", fillcolor, line: { width: 0 }, hoverinfo: "skip",
  };
}

function curvesChart() {
  const [recipe, metric] = [byId("recipe").value, byId("metric").value];
  const chosen = DATA.curves.filter(
    (curve) => curve.recipe === recipe && curve.metric === metric && !hiddenCurves.has(curve.label),
  );
  const bands = chosen
    .filter((curve) => curve.seeds > 1)
    .map((curve) => bandOf(curve, colour(curveStyles.get(curve.label).variable, 0.1)));
  const lines = chosen.map((curve) => {
    const { variable, dash } = curveStyles.get(curve.label);
    return {
      x: curve.epochs, y: curve.mean, mode: curve.epochs.length > 1 ? "lines" : "markers",
      name: plain(`${curve.label}, ${curve.seeds} ${curve.seeds === 1 ? "seed" : "seeds"}`),
      hovertemplate: "%{y:.4~g}", line: { color: colour(variable), dash, width: 2.5 },
    };
  });
  return {
    traces: bands.concat(lines),
    layout: {
      uirevision: `${recipe} ${metric}`,
      xaxis: { title: { text: "epoch" }, zeroline: false },
      yaxis: { title: { text: plain(metric.replaceAll("_", " ")) }, zeroline: false },
    },
    label: `${metric} of ${recipe} by epoch: ${chosen.map((curve) => curve.label).join(", ")}`,
  };
}

const updateCurves = () => draw(byId("curves-chart"), curvesChart);

function chooseRecipe() {
  const ofRecipe = DATA.curves.filter((curve) => curve.recipe === byId("recipe").value);
  const metrics = [...new Set(ofRecipe.map((curve) => curve.metric))];
  const before = byId("metric").value;
  byId("metric").replaceChildren(...metrics.map((name) => new Option(name.replaceAll("_", " "), name)));
  if (metrics.includes(before)) byId("metric").value = before;
  const chips = [...new Set(ofRecipe.map((curve) => curve.label))].map((label) =>
    chip(
      { label, style: curveStyles.get(label), isChecked: !hiddenCurves.has(label) },
      (isChecked) => {
        hiddenCurves[isChecked ? "delete" : "add"](label);
        updateCurves();
      },
    ),
  );
  byId("curves-shown").replaceChildren(byId("curves-shown").firstElementChild, ...chips);
  updateCurves();
}

if (DATA.curves.length) {
  byId("recipe").addEventListener("change", chooseRecipe);
  byId("metric").addEventListener("change", updateCurves);
  chooseRecipe();
}

/* -- probes ----------------------------------------------------------------------------------------- */

function probeChart({ layer, alpha, alpha_low: low, alpha_high: high, gaussian }, width) {
  const places = layer.map((_, i) => i + 1);
  const every = Math.ceil((layer.length * 18) / width); // as many names as there is room for
  const named = places.filter((place) => (place - 1) % every === 0);
  const reach = (end, sign) => alpha.map((value, i) => (end[i] === null ? 0 : sign * (end[i] - value)));
  return {
    traces: [
      {
        x: places, y: gaussian, name: "a Gaussian’s", mode: "lines+markers", hovertemplate: "%{y:.3~g}",
        line: { color: colour("--line-2"), dash: "dash", width: 1.5 },
        marker: { symbol: "diamond-open", size: 7 },
      },
      {
        x: places, y: alpha, name: "α, 95%", mode: "markers", hovertemplate: "%{y:.3~g}",
        marker: { color: colour("--line-0"), size: 9 },
        error_y: {
          type: "data", symmetric: false, array: reach(high, 1), arrayminus: reach(low, -1),
          color: colour("--line-0"), thickness: 1.5, width: 3,
        },
      },
    ],
    layout: {
      xaxis: {
        tickmode: "array", tickvals: named, ticktext: named.map((place) => plain(layer[place - 1])),
        tickangle: -45, tickfont: { size: 11 }, zeroline: false, showgrid: false,
      },
      yaxis: { title: { text: "Hill’s α" }, rangemode: "tozero" },
      showlegend: true,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    },
  };
}

for (const details of document.querySelectorAll(".probe")) {
  const element = details.querySelector(".chart");
  const show = () => {
    if (!element || !details.open) return;
    draw(element, () => probeChart(DATA.probes[details.dataset.probe], element.clientWidth));
  };
  details.addEventListener("toggle", show); // a closed one has no width to draw in
  show();
}

/* -- sorting ---------------------------------------------------------------------------------------- */

/** Numbers before texts, and what has neither last, whichever way the column is sorted. */
function compareCells(a, b, direction) {
  const [first, second] = [a, b].map((cell) => parseFloat(cell.dataset.sort));
  if (Number.isNaN(first) !== Number.isNaN(second)) return Number.isNaN(first) ? 1 : -1;
  if (!Number.isNaN(first)) return direction * (first - second);
  return direction * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.querySelectorAll("th[data-column]")];
  for (const header of headers) {
    header.querySelector("button").addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[header.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next; // the third press brings back the first order
      for (const each of headers) each.removeAttribute("aria-sort");
      if (order) header.setAttribute("aria-sort", order);
      const column = Number(header.dataset.column);
      const direction = order === "descending" ? -1 : 1;
      const compare = (a, b) => compareCells(a.cells[column], b.cells[column], direction);
      body.append(...(order ? original.slice().sort(compare) : original));
    });
  }
}

/* -- figures and remarks ---------------------------------------------------------------------------- */

for (const image of document.querySelectorAll("figure img")) {
  // several panels side by side need the whole width to be read
  const place = () => {
    const isWide = image.naturalWidth > 2.2 * image.naturalHeight;
    image.closest("figure").classList.toggle("wide", isWide);
  };
  if (image.complete) place();
  else image.addEventListener("load", place);
}

// A remark may lie in a closed list.
addEventListener("hashchange", () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const closed = target?.closest("details:not([open])");
  if (closed) {
    closed.open = true;
    target.scrollIntoView();
  }
});

showTheme();
