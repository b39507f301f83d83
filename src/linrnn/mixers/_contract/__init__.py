"""The contract of every mixer, and the parts around one."""
