"""What is done: every stage is a plain function over the typed contract in `stages.contract`."""
