"""Training, timing and other computation that several reproductions share."""
