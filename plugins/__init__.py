"""The first-party plugins: they are the defaults, and the examples."""
