"""Further parts that learners share."""
