"""Tokenization engines: the reference, the proof of identity against it, and the choice of the fastest that passes."""
