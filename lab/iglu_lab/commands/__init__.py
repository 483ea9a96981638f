"""The commands of the lab, one a file: its flags and what it prints."""
