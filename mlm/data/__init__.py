"""From documents to batches: corpus, tokenizer, packed rows, loader."""
