"""``iglu report``: what was measured, compared with what the paper printed; it only reads."""
