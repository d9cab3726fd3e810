"""The model: made or loaded, with adapters, and computed faster where that was proved the same."""
