"""Generated tasks: pure Python, the same rows for the same arguments; a data section's `source: python:...`."""
