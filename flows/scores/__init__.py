"""Scores of models on suites, for the steps and for whoever asks; and what `ratchet score` shows of rewards."""
