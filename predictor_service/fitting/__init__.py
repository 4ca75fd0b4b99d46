"""One function that learns a target: what `evaluate` scores, `retrain` stores and the service answers with."""
