"""A run's folder: writing, reading, provenance."""
