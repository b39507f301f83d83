"""What verbs consist of."""
