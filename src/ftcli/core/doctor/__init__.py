"""What this installation and its surroundings are."""
