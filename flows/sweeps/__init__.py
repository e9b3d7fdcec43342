"""Sweeps: many runs of one pipeline with other settings, as one flow, and which of them did best."""
