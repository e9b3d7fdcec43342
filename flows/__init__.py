"""How it is run: Hydra composition, the Prefect flow and its tasks, MLflow tracking, the command line."""
