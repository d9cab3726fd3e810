"""The sample corpus: texts of 280 labels from a grammar."""
