"""Record batches → rows of token ids: length policy, chat, labels, packing and writing, shard by shard, in any number of workers."""
