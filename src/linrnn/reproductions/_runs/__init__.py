"""What is trained, timed or computed for several reproductions."""
