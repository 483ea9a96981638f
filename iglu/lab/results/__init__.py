"""Statistics over seeds, runs beside each other, and how pictures look."""
