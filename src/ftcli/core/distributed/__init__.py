"""Several processes that train as one: launched, watched, and agreed on what they decide."""
