"""One loop for images and text, what they differ in, and what watches a run."""
