"""What a reproduction is, how it judges, and the page it leaves."""
