"""Hardware profiles: settings as data. Counts are ceilings, cut to the cores and the memory that are really there."""
