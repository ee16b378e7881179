"""From runs and translations to what the paper prints: figures, tables, comparisons."""
