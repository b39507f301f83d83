"""Sentences that several recipes share."""

NOT_RUN = (
    "the published accuracy, or how far from it one seed ends with the departures below; nobody "
    "has run it here to its end"
)
IMDB = "A tenth of the training reviews is for validation, and the symbols are bytes: see the task."
