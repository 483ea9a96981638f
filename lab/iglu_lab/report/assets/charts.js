"use strict";

/* Shared by all charts: colors of the theme, line styles, checkboxes, drawing, CSV download, and the full-screen
   view. */

function create(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const TEXT = 13; // pixels
const COLORS = 7; // --line-0 to --line-6 of the style sheet
const DASHES = [
  ["solid", ""], ["dash", "5 3"], ["dot", "1.5 2.5"], ["dashdot", "6 2 1.5 2"], ["longdash", "9 3"],
  ["longdashdot", "9 2 1.5 2"],
];

/** The style of a line by its index; variants have the same color.  Dashes distinguish lines without color. */
function lineStyle(index, variant = 0) {
  const [dash, swatch] = DASHES[(Math.floor(index / COLORS) + variant) % DASHES.length];
  return { variable: `--line-${index % COLORS}`, dash, swatch };
}

/** Resolve a color of the style sheet in the current theme, since Plotly does not read CSS variables. */
function color(variable, alpha = 1) {
  const sample = create("span");
  sample.style.color = `var(${variable})`;
  document.body.append(sample);
  const [red, green, blue] = getComputedStyle(sample).color.match(/[\d.]+/g);
  sample.remove();
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** Escape a name, since Plotly interprets some HTML in labels. */
function plain(text) {
  return String(text).replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
}

/** Decompress and load Plotly; the page's policy allows it by its hash. */
const plotly = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(create("script", { textContent: await new Response(stream).text() }));
  return Plotly;
})();

const charts = new Map(); // element -> function that makes its chart, to redraw it when the theme changes

/** Draw `make()`, {traces, layout, label}, into the element, now and whenever the theme changes.  Without
    simplification: Plotly's drops points, which turns smooth lines into polygons. */
function draw(element, make) {
  charts.set(element, make);
  const { traces, layout, label } = make();
  for (const trace of traces) if (trace.line) trace.line.simplify = false;
  if (label) element.setAttribute("aria-label", label);
  const axis = {
    gridcolor: color("--grid"), zerolinecolor: color("--axis"), linecolor: color("--axis"),
    zerolinewidth: 1, automargin: true,
  };
  // Plotly draws powers of ten a quarter larger than other ticks, and titles a fifth larger than ticks.
  const dressed = (own = {}) => ({
    ...axis, ...(own.type === "log" && { tickfont: { size: 0.8 * TEXT } }), ...own,
    title: { standoff: 10, font: { size: TEXT }, ...own.title },
  });
  const merged = {
    autosize: true,
    margin: { l: 56, r: 12, t: 12, b: 48 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: TEXT, color: color("--quiet") },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--grid"), font: { color: color("--ink") } },
    // On a touch screen, dragging scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...layout,
    xaxis: dressed(layout.xaxis),
    yaxis: dressed(layout.yaxis),
  };
  return plotly.then(({ react }) => react(element, traces, merged, { responsive: true, displayModeBar: false }));
}

/** Ticks at integer epochs only. */
function epochAxis(epochs) {
  const rough = (epochs.at(-1) - epochs[0]) / 10;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const dtick = [1, 2, 5, 10].map((size) => size * power).find((step) => step >= rough);
  return { title: { text: "epoch" }, zeroline: false, tick0: 0, dtick, tickformat: "d" };
}

/** The area between two curves, over the points where both have a number. */
function bandOf(x, low, high, fillcolor) {
  const inside = x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const back = inside.slice().reverse();
  return {
    x: [...inside, ...back].map((i) => x[i]),
    y: [...inside.map((i) => high[i]), ...back.map((i) => low[i])],
    mode: "lines", fill: "toself", fillcolor, line: { width: 0 }, hoverinfo: "skip",
    showlegend: false,
  };
}

/** Means over epochs, and below them a faint band for each curve with several seeds; `look(curve, i)` is
    {name, mode, width, style} of a line. */
function epochTraces(curves, look) {
  const looks = curves.map(look);
  const alpha = Math.max(0.03, 0.2 / (curves.length + 1));
  const bands = curves.flatMap(({ epochs, low, high, seeds }, i) =>
    seeds > 1 ? [bandOf(epochs, low, high, color(looks[i].style.variable, alpha))] : [],
  );
  const lines = curves.map(({ epochs, mean, low, high }, i) => {
    const { name, mode, width, style: { variable, dash } } = looks[i];
    const line = { color: color(variable), dash, width };
    return { x: epochs, y: mean, low, high, name: plain(name), mode, hovertemplate: "%{y:.4~g}", line };
  });
  return bands.concat(lines);
}

/** A checkbox with a sample of its line; calls `changed(isChecked)`. */
function chip({ label, style: { variable, swatch }, isChecked }, changed) {
  const input = create("input", { type: "checkbox", checked: isChecked });
  input.addEventListener("change", () => changed(input.checked));
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "0 0 24 8");
  picture.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ x1: 0, y1: 4, x2: 24, y2: 4, "stroke-dasharray": swatch })) {
    line.setAttribute(name, value);
  }
  line.style.stroke = `var(${variable})`;
  picture.append(line);
  return create("label", {}, input, picture, create("span", { textContent: label }));
}

/* -- CSV download and full-screen view --------------------------------------------------------------- */

/** One line per row; text that a spreadsheet would interpret as a formula is quoted. */
function csvText(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const harmless = /^[=@\t\r]|^[+-](?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

function download(name, rows) {
  const href = URL.createObjectURL(new Blob([csvText(rows)], { type: "text/csv" }));
  create("a", { download: `${name.replace(/[^A-Za-z0-9.]+/g, "-")}.csv`, href }).click();
  setTimeout(() => URL.revokeObjectURL(href));
}

/** The plotted points of charts, one per row, with both ends of their range. */
function rowsOfCharts(elements) {
  const rows = [["panel", "series", "x", "y", "low", "high"]];
  for (const element of elements) {
    for (const { name, x, y, low, high } of charts.get(element)?.().traces ?? []) {
      if (name) x.forEach((each, i) => rows.push([element.getAttribute("aria-label"), name, each, y[i], low?.[i], high?.[i]]));
    }
  }
  return rows;
}

/** The texts of a table, each with the number behind its cell. */
function rowsOfTable(table) {
  const text = (cell) => cell.textContent.replace(/\s+/g, " ").trim();
  const lines = [...table.rows].filter((row) => !row.classList.contains("axis"));
  const cells = (row) => [...row.cells].flatMap((cell) => {
    const span = Array(cell.colSpan).fill(text(cell));
    return row.parentElement === table.tBodies[0] ? [text(cell), cell.dataset.sort ?? ""] : span.flatMap((each) => [each, ""]);
  });
  return lines.map(cells);
}

function tool(label, title, press) {
  const button = create("button", { type: "button", textContent: label });
  button.setAttribute("aria-label", `${label}: ${title}`);
  button.addEventListener("click", press);
  return button;
}

const toolLine = (...tools) => create("p", { className: "tools" }, ...tools);

/** Move a figure into the dialog, and back on close; a dialog keeps the focus and handles the Escape key. */
function enlarge(figure, dialog) {
  const mark = document.createComment("");
  figure.replaceWith(mark);
  dialog.append(figure);
  const redraw = () => figure.querySelectorAll(".chart").forEach((chart) => plotly.then(({ Plots }) => Plots.resize(chart)));
  dialog.addEventListener("close", () => {
    mark.replaceWith(figure);
    redraw();
    figure.querySelector(".tools button:last-child")?.focus();
  }, { once: true });
  dialog.showModal();
  redraw();
}
