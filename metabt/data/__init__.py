"""From the name of a dataset to batches of ids: download, read, clean, subwords, shards."""
