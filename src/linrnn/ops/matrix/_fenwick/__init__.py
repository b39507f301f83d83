"""Memories of levels by age, as `fenwick_scan` computes them: by blocks, by scans and by steps."""
