"""What is rewarded: pure functions from (prompt, completion, reference, row) to a number."""
