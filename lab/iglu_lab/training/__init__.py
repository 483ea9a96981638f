"""The training loop, the workloads (images, text, task sequences), checkpoints and observers."""
