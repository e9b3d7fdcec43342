"""What can be configured: the typed schema (standard library only) beside the YAML groups that fill it."""
