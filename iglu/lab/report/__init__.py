"""``iglu report``: what was measured, beside what the paper printed; it reads and never trains or times."""
