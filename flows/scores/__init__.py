"""Scores of models on suites, for the gate's steps and for whoever asks."""
