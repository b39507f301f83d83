"""Parts of the verbs of the command line."""
