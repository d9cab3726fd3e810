"""Sources → checked record batches: files found, planned into shards and read; bad rows are named."""
