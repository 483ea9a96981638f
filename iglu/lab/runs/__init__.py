"""A run's folder: written, read back, stamped."""
