"""Into and out of other tools' formats: prepared data and configuration files."""
