"""What learners share besides."""
