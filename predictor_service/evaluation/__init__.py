"""How good a model is on rows that it has not seen: splits, metrics, baselines, intervals, one report."""
