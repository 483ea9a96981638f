"""What ``iglu probe`` draws."""
