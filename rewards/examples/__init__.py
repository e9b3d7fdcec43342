"""Custom rewards to use as they are or to copy: plain functions, called with those arguments that they name."""
