"""Work beside the flow's own process: in processes of this machine, or on a Ray cluster."""
