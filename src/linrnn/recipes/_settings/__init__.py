"""Settings that several recipes share."""
