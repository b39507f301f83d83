"""Many series at once: plain forecasts in NumPy, and how one is chosen among them."""
