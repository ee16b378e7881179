"""Translation models and how they are decoded: tensors, and nothing of back-translation."""
