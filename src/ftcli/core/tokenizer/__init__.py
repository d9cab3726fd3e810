"""The tokenizer itself: its vocabulary, chat template and round trip; loading it cheaply, converting one and training one."""
