"use strict";

/* Before anything is drawn: the theme that was chosen last time.  A page from disk may have no storage. */
const THEME_KEY = "iglu-report-theme";
try {
  const chosen = localStorage.getItem(THEME_KEY);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // then it is not remembered, and the system's choice stands
}
