"""Bundles: a pipeline in one file, for another machine, and its results back from there."""
