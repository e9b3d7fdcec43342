"""Schedules: deployments of a pipeline on Prefect's server, and what becomes of their runs."""
