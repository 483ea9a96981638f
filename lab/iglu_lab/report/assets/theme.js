"use strict";

/* Apply the stored theme before anything is drawn.  A page opened from disk may have no storage. */
const THEME_KEY = "iglu-report-theme";
try {
  const chosen = localStorage.getItem(THEME_KEY);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // no storage: use the theme of the system
}
