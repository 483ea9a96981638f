"""The tails of networks as tables and pictures."""
