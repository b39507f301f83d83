"""Sentences that several recipes share."""

NOT_RUN = (
    "the published accuracy, or how far from it a run ends with our departures from the published "
    "settings; not which of them is the reason"
)
IMDB = "A tenth of the training reviews is for validation, and the symbols are bytes: see the task."
