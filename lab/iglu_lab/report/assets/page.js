"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/* -- theme ------------------------------------------------------------------------------------------ */

const root = document.documentElement;
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);

function showTheme() {
  byId("theme").setAttribute("aria-pressed", String(isDark()));
}

function changeTheme() {
  showTheme();
  showKeys();
  for (const [element, make] of charts) draw(element, make);
}

byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, root.dataset.theme);
  } catch {
    // the choice is not stored
  }
  changeTheme();
});
systemIsDark.addEventListener("change", changeTheme);

// Print in the light theme.
let themeOnScreen;
addEventListener("beforeprint", () => {
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  changeTheme();
});
addEventListener("afterprint", () => {
  if (themeOnScreen) root.dataset.theme = themeOnScreen;
  else delete root.dataset.theme;
  changeTheme();
});

/* -- explorer --------------------------------------------------------------------------------------- */

const VIEWS = {
  value: { label: "Function", axis: "f(x)", range: [-1, 4] },
  gate: { label: "Gate", axis: "f(x)/x", range: [-0.1, 1.1] },
  slope: { label: "First derivative", axis: "f′(x)", range: [-0.2, 1.2] },
  curvature: { label: "Second derivative", axis: "f″(x)", range: [-0.2, 0.9] },
  tail: { label: "Tail", axis: "|f′(x)|" },
};
const REACH = 4; // initially, x is from -REACH to REACH

const FIRST_SHOWN = DATA.explorer.activations.filter((each) => each.is_shown).map((each) => each.name);
const explorer = { view: "value", sigma: 1, shown: new Set(FIRST_SHOWN) };

/** The state of the explorer as #sigma=2&view=slope&show=iglu,relu; `show` only if it is not the default. */
function addressOfExplorer() {
  const shown = [...explorer.shown].join(",");
  const parts = new URLSearchParams({ sigma: explorer.sigma, view: explorer.view });
  if (shown !== FIRST_SHOWN.join(",")) parts.set("show", shown);
  return `#${parts.toString().replaceAll("%2C", ",")}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (Number(parts.get("sigma")) > 0) explorer.sigma = Number(parts.get("sigma"));
  if (Object.hasOwn(VIEWS, parts.get("view") ?? "")) explorer.view = parts.get("view");
  if (parts.has("show")) {
    const known = DATA.explorer.activations.map((each) => each.name);
    explorer.shown = new Set(parts.get("show").split(",").filter((name) => known.includes(name)));
  }
}

/** Update the address and the chart after a control was used; some browsers do not allow the former. */
function changeExplorer() {
  try {
    history.replaceState(null, "", addressOfExplorer());
  } catch {
    // the page works without it
  }
  updateExplorer();
}

/** The common grid, with additional points where u = sigma x is of order 1. */
function gridFor(sigma) {
  const near = Array.from({ length: 120 }, (_, i) => 10 ** (-2 + (i * 4) / 120) / sigma);
  const reach = -DATA.explorer.x[0];
  const extra = near.filter((x) => x < reach).flatMap((x) => [-x, x]);
  return DATA.explorer.x.concat(extra).sort((a, b) => a - b);
}

/** Insert a gap at each jump: a step much larger than its neighbors. */
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
    // 0 has no logarithm
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
      line: { color: color(variable), dash, width: isOurs ? 3 : 2 },
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

/** The range, widened to contain the curves. */
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
      line: { color: color("--axis"), dash: "dot", width: 1 },
    }],
    annotations: [{
      text: `smallest float16: ${half.toExponential(1)}`, xref: "paper", x: 0.01, xanchor: "left",
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
}

byId("sigma").addEventListener("input", () => {
  setSigma(10 ** byId("sigma").valueAsNumber);
  byId("sigma-number").value = explorer.sigma;
  changeExplorer();
});
byId("sigma-number").addEventListener("input", () => {
  const typed = byId("sigma-number").valueAsNumber;
  if (!(typed > 0)) return;
  setSigma(typed);
  byId("sigma").value = Math.log10(explorer.sigma);
  changeExplorer();
});
byId("sigma-number").addEventListener("change", () => {
  byId("sigma-number").value = explorer.sigma;
});

for (const [view, { label }] of Object.entries(VIEWS)) {
  const input = create("input", { type: "radio", name: "view", value: view });
  input.addEventListener("change", () => {
    explorer.view = view;
    changeExplorer();
  });
  byId("views").append(create("label", {}, input, create("span", { textContent: label })));
}

const boxes = new Map(); // name -> its checkbox
DATA.explorer.activations.forEach(({ name, label, is_shown: isFirst, curves }, index) => {
  const element = chip({ label, style: lineStyle(index), isChecked: false }, (isChecked) => {
    explorer.shown[isChecked ? "add" : "delete"](name);
    changeExplorer();
  });
  boxes.set(name, element.querySelector("input"));
  byId(isFirst || !curves ? "takes-sigma" : "takes-none").append(element);
});
byId("more-count").textContent = byId("takes-none").querySelectorAll("input").length;

/** Show the state in the address, also after it was edited or a link was followed. */
function showAddress() {
  readAddress();
  setSigma(explorer.sigma);
  byId("sigma-number").value = explorer.sigma;
  byId("sigma").value = Math.log10(explorer.sigma);
  for (const input of byId("views").querySelectorAll("input")) input.checked = input.value === explorer.view;
  for (const [name, input] of boxes) input.checked = explorer.shown.has(name);
  updateExplorer();
}
showAddress();

/* -- curves over epochs ----------------------------------------------------------------------------- */

/** Styles by label: the color of the activation in the explorer, and one dash per sigma. */
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

/** The range of the curves without their first third, which would compress the rest. */
function settledRange(curves) {
  const settled = curves.flatMap(({ epochs, mean }) =>
    mean.filter((value, i) => value !== null && epochs[i] > epochs.at(-1) / 3),
  );
  if (!settled.length) return undefined;
  const [low, high] = [Math.min(...settled), Math.max(...settled)];
  const margin = 0.35 * (high - low) || Math.abs(high) / 50 || 1;
  return [low - margin, high + margin];
}

const metricLabel = (name) => DATA.metrics[name] ?? name;

function curvesChart() {
  const [recipe, metric] = [byId("recipe").value, byId("metric").value];
  const chosen = DATA.curves.filter(
    (curve) => curve.recipe === recipe && curve.metric === metric && !hiddenCurves.has(curve.label),
  );
  return {
    traces: epochTraces(chosen, ({ label, seeds, epochs }) => ({
      name: `${label}, ${seeds} ${seeds === 1 ? "seed" : "seeds"}`,
      mode: epochs.length > 10 ? "lines" : "lines+markers", width: 2.5, style: curveStyles.get(label),
    })),
    layout: {
      uirevision: `${recipe} ${metric}`,
      xaxis: epochAxis(chosen.length ? chosen[0].epochs : [1]),
      yaxis: { title: { text: plain(metricLabel(metric)) }, zeroline: false, range: settledRange(chosen) },
    },
    label: `${metricLabel(metric)} of ${recipe} by epoch: ${chosen.map((curve) => curve.label).join(", ")}`,
  };
}

const updateCurves = () => draw(byId("curves-chart"), curvesChart);

function chooseRecipe() {
  const ofRecipe = DATA.curves.filter((curve) => curve.recipe === byId("recipe").value);
  const metrics = [...new Set(ofRecipe.map((curve) => curve.metric))];
  const before = byId("metric").value;
  byId("metric").replaceChildren(...metrics.map((name) => new Option(metricLabel(name), name)));
  const first = ["test_acc", "perplexity"].find((name) => metrics.includes(name));
  byId("metric").value = metrics.includes(before) ? before : (first ?? metrics[0]);
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

/* -- learned sigmas --------------------------------------------------------------------------------- */

function sigmasChart() {
  const whose = byId("learned").value;
  const chosen = DATA.sigmas.filter((curve) => curve.whose === whose);
  return {
    traces: epochTraces(chosen, ({ metric: layer, epochs }, i) => ({
      name: layer, mode: epochs.length > 1 ? "lines" : "markers", width: 2, style: lineStyle(i),
    })),
    layout: {
      uirevision: whose, showlegend: true, legend: { font: { size: 12 } },
      xaxis: epochAxis(chosen[0].epochs),
      yaxis: { title: { text: "σ" }, zeroline: false },
    },
    label: `Learned sigma of ${whose}, by epoch, one line per layer`,
  };
}

if (DATA.sigmas.length) {
  const update = () => draw(byId("sigmas-chart"), sigmasChart);
  byId("learned").addEventListener("change", update);
  update();
}

/* -- probes ----------------------------------------------------------------------------------------- */

const LEGEND_ABOVE = { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } };

function probeChart({ layer, alpha, alpha_low: low, alpha_high: high, gaussian }, width) {
  const places = layer.map((_, i) => i + 1);
  const every = Math.ceil((layer.length * 18) / width); // as many names as there is room for
  const named = places.filter((place) => (place - 1) % every === 0);
  const reach = (end, sign) => alpha.map((value, i) => (end[i] === null ? 0 : sign * (end[i] - value)));
  return {
    traces: [
      {
        x: places, y: gaussian, name: "Gaussian", mode: "lines+markers", hovertemplate: "%{y:.3~g}",
        line: { color: color("--line-2"), dash: "dash", width: 1.5 },
        marker: { symbol: "diamond-open", size: 7 },
      },
      {
        x: places, y: alpha, low, high, name: "α, 95%", mode: "markers", hovertemplate: "%{y:.3~g}",
        marker: { color: color("--line-0"), size: 9 },
        error_y: {
          type: "data", symmetric: false, array: reach(high, 1), arrayminus: reach(low, -1),
          color: color("--line-0"), thickness: 1.5, width: 3,
        },
      },
    ],
    layout: {
      xaxis: {
        tickmode: "array", tickvals: named, ticktext: named.map((place) => plain(layer[place - 1])),
        tickangle: -45, tickfont: { size: 11 }, zeroline: false, showgrid: false,
      },
      yaxis: { title: { text: "Hill’s α" }, rangemode: "tozero" },
      ...LEGEND_ABOVE,
    },
  };
}

function hillChart({ name, hill }, layer) {
  const curve = hill[layer];
  const { k, xi, xi_low: low, xi_high: high, gaussian_xi: gaussian } = curve;
  const bands = [bandOf(k, low, high, color("--line-0", 0.18))];
  if (curve.gaussian_low) bands.push(bandOf(k, curve.gaussian_low, curve.gaussian_high, color("--line-2", 0.18)));
  const line = (y, label, variable, dash, ends) => ({
    x: k, y, ...ends, name: label, mode: "lines", hovertemplate: "%{y:.3~g}",
    line: { color: color(variable), dash, width: 2.5 },
  });
  return {
    traces: bands.concat([
      line(gaussian, "Gaussian, 95%", "--line-2", "dash", { low: curve.gaussian_low, high: curve.gaussian_high }),
      line(xi, "Hill’s ξ, 95% if independent", "--line-0", "solid", { low, high }),
    ]),
    layout: {
      xaxis: { title: { text: "k, the number of values" }, type: "log", exponentformat: "power", dtick: 1 },
      yaxis: { title: { text: "ξ = 1/α" }, rangemode: "tozero" },
      ...LEGEND_ABOVE,
    },
    label: `Hill plot of ${layer} of ${name}: xi against k, compared with a Gaussian`,
  };
}

for (const details of document.querySelectorAll(".probe")) {
  const probe = DATA.probes[details.dataset.probe];
  const [depth, hill, layer] = [".depth", ".hill", ".layer"].map((each) => details.querySelector(each));
  const show = () => {
    if (!details.open) return;
    if (depth) draw(depth, () => probeChart(probe, depth.clientWidth));
    if (hill) draw(hill, () => hillChart(probe, layer.value));
  };
  layer?.addEventListener("change", show);
  details.addEventListener("toggle", show); // when closed, it has no width to draw in
  show();
}

/* -- sorting ---------------------------------------------------------------------------------------- */

/** Numbers come before texts, in both directions. */
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
      const order = next === undefined ? "ascending" : next; // the third click restores the original order
      for (const each of headers) each.removeAttribute("aria-sort");
      if (order) header.setAttribute("aria-sort", order);
      const column = Number(header.dataset.column);
      const direction = order === "descending" ? -1 : 1;
      const compare = (a, b) => compareCells(a.cells[column], b.cells[column], direction);
      body.append(...(order ? original.slice().sort(compare) : original));
    });
  }
}

/* -- figures ---------------------------------------------------------------------------------------- */

const PLOTLY_DASHES = { "-": "solid", "--": "dash", ":": "dot", "-.": "dashdot" };
const SYMBOLS = { "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross", "X": "x", "*": "star", ".": "circle", "x": "x-thin-open" };

/** Adapt a color that was chosen for white paper to the theme: lighter on a dark page. */
function onPage(hex, alpha = 1) {
  const channels = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  const light = (0.3 * channels[0] + 0.59 * channels[1] + 0.11 * channels[2]) / 255;
  const share = isDark() ? Math.max(0, 0.75 - light) : Math.max(0, light - 0.75);
  const mixed = channels.map((value) => Math.round(value + share * ((isDark() ? 255 : 0) - value)));
  return `rgba(${mixed.join(",")},${alpha})`;
}

function panelChart({ title, labels, scales, limits, lines }, name) {
  const axis = (i) => {
    const isLog = scales[i] === "log";
    const range = limits[i] && isLog ? limits[i].map(Math.log10) : limits[i];
    const decades = range ? Math.ceil((range[1] - range[0]) / 6) : 1;
    return {
      title: { text: plain(labels[i]) }, type: scales[i], ...(range && { range }), zeroline: false,
      ...(isLog ? { exponentformat: "power", dtick: Math.max(1, decades) } : {}),
    };
  };
  const bands = lines
    .filter(({ low }) => low.length)
    .map(({ x, low, high, color: hex }) => bandOf(x, low, high, onPage(hex, Math.max(0.05, 0.3 / lines.length))));
  return {
    traces: bands.concat(lines.map(({ label, x, y, low, high, color: hex, dash, marker }) => ({
      x, y, low, high, name: plain(label), hovertemplate: "%{y:.3~g}",
      mode: !dash ? "markers" : marker ? "lines+markers" : "lines",
      line: { color: onPage(hex), width: 2, dash: PLOTLY_DASHES[dash] ?? "solid" },
      marker: { color: onPage(hex), size: marker === "." ? 3 : 5, symbol: SYMBOLS[marker] ?? "circle", line: { width: 1, color: onPage(hex) } },
    }))),
    layout: {
      title: { text: plain(title), font: { size: 13 }, y: 0.98, yanchor: "top" },
      margin: { l: 48, r: 8, t: 28, b: 44 }, hovermode: "closest", xaxis: axis(0), yaxis: axis(1),
    },
    label: `${name}: ${title || labels[0]}`,
  };
}

/** The legend: the lines of all panels, without duplicates. */
function keyOf(panels) {
  const known = new Map(panels.flatMap(({ lines }) => lines).filter(({ label }) => label).map((each) => [each.label, each]));
  return [...known.values()].map(({ label, color: hex, dash, marker }) => {
    const swatch = create("span", { className: dash ? "swatch" : "dot" });
    swatch.style.color = onPage(hex);
    if (dash) swatch.style.borderTopStyle = { "--": "dashed", ":": "dotted", "-.": "dashed" }[dash] ?? "solid";
    else swatch.textContent = marker === "x" ? "×" : "•";
    return create("li", {}, swatch, label);
  });
}

const redrawn = [...document.querySelectorAll("figure[data-figure]")];
function showKeys() {
  for (const figure of redrawn) {
    figure.querySelector(".key").replaceChildren(...keyOf(DATA.figures[figure.dataset.figure].panels));
  }
}
for (const figure of redrawn) {
  const { title, panels } = DATA.figures[figure.dataset.figure];
  figure.querySelectorAll(".chart").forEach((element, i) => draw(element, () => panelChart(panels[i], title)));
}
showKeys();

const dialog = byId("enlarged");
byId("shrink").addEventListener("click", () => dialog.close());

for (const figure of document.querySelectorAll("figure.drawing")) {
  const { name } = figure.dataset;
  const data = () => download(name, rowsOfCharts(figure.querySelectorAll(".chart")));
  figure.append(toolLine(tool("Data (CSV)", name, data), tool("Enlarge", name, () => enlarge(figure, dialog))));
}
for (const holder of document.querySelectorAll(".scroll, table.forest")) {
  const { name } = holder.dataset;
  const table = holder.querySelector("table") ?? holder;
  const data = () => download(name, rowsOfTable(table));
  holder.after(create("div", {}, toolLine(tool("Data (CSV)", name, data))));
}

/* -- addresses -------------------------------------------------------------------------------------- */

/** Scroll to the target of the address, which may be inside closed details. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  let closed = target?.closest("details:not([open])");
  while (closed) {
    closed.open = true;
    closed = closed.parentElement.closest("details:not([open])");
  }
  target?.scrollIntoView();
}

addEventListener("hashchange", () => {
  if (location.hash.includes("=")) showAddress();
  else openTarget();
});
if (location.hash && !location.hash.includes("=")) openTarget();

showTheme();
