"""The contract of a reproduction, its verdicts on claims, and the page it writes."""
