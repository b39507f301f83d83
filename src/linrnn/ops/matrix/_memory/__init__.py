"""What `outer_scan` and `delta_scan` share: a matrix a head that forgets and is written to."""
