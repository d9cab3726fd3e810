"""The run: what is refused before it, its steps, figures, checkpoints and outcome."""
