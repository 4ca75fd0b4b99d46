"""Jobs that nothing predicts well: measured alone first, then shared on trial within bounds fixed beforehand."""
