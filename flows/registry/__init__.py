"""The registry: which models have shipped, and how one comes to be the champion."""
