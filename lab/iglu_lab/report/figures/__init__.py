"""The report's figures: each is described once, in numbers, and rendered by Matplotlib (PNG and SVG) and,
on the page, by Plotly."""
