"""Tables and pictures of probed networks."""
