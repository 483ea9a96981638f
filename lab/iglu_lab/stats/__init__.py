"""Statistics over seeds, comparisons of runs, tables, and the style of figures."""
