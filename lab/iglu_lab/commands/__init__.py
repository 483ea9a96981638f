"""The commands of the lab, one per file: flags and output."""
