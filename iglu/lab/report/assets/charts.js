"use strict";

/* What the charts share: colours that follow the theme, line styles, chips to choose by, and drawing. */

const COLOURS = 7; // --line-0 to --line-6 of the style sheet
const DASHES = [
  ["solid", ""], ["dash", "5 3"], ["dot", "1.5 2.5"], ["dashdot", "6 2 1.5 2"], ["longdash", "9 3"],
  ["longdashdot", "9 2 1.5 2"],
];

/** The style of the i-th of many, and of its variants in the same colour; a dash tells apart without colour. */
function lineStyle(index, variant = 0) {
  const [dash, swatch] = DASHES[(Math.floor(index / COLOURS) + variant) % DASHES.length];
  return { variable: `--line-${index % COLOURS}`, dash, swatch };
}

/** A colour of the style sheet as the current theme resolves it, for Plotly reads no variables. */
function colour(variable, alpha = 1) {
  const sample = document.createElement("span");
  sample.style.color = `var(${variable})`;
  document.body.append(sample);
  const [red, green, blue] = getComputedStyle(sample).color.match(/[\d.]+/g);
  sample.remove();
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** Plotly takes some HTML in its labels; a name is to be shown as it is. */
function plain(text) {
  return String(text).replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
}

/** Plotly, unpacked; the page's policy knows it by its hash. */
const plotly = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  return Plotly;
})();

const charts = new Map(); // element -> function that draws it, for when the theme changes

/** Draw `make()`, {traces, layout, label}, into the element, now and whenever the theme changes. */
function draw(element, make) {
  charts.set(element, make);
  const { traces, layout, label } = make();
  if (label) element.setAttribute("aria-label", label);
  const axis = {
    gridcolor: colour("--grid"), zerolinecolor: colour("--axis"), linecolor: colour("--axis"),
    zerolinewidth: 1, automargin: true, title: { standoff: 10 },
  };
  const merged = {
    autosize: true,
    margin: { l: 56, r: 12, t: 12, b: 48 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--quiet") },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--grid"), font: { color: colour("--ink") } },
    // On a touch screen a drag is for scrolling the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
  return plotly.then(({ react }) => react(element, traces, merged, { responsive: true, displayModeBar: false }));
}

function redrawAll() {
  for (const [element, make] of charts) draw(element, make);
}

/** A tick box with a sample of its line; `changed(isChecked)` is told. */
function chip({ label, style: { variable, swatch }, isChecked }, changed) {
  const element = document.createElement("label");
  const input = document.createElement("input");
  input.type = "checkbox";
  input.checked = isChecked;
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
  const text = document.createElement("span");
  text.textContent = label;
  element.append(input, picture, text);
  return element;
}
