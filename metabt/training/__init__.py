"""How models are trained: one loop, its optimisers, checkpoints, threads and processes."""
