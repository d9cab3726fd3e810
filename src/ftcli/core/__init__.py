"""The stages of the pipeline: read, encode, pack, store, batch, train, and what measures them."""
