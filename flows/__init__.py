"""How it is run: Hydra composition, the Prefect flow and its tasks, MLflow tracking, the command line."""

from flows.environment import set_defaults

set_defaults()
