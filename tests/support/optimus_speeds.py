"""The speed functions of Optimus with the coefficients of its Table 2, as ground truth for fits.

The paper prints neither M nor the unit of Table 2, so that M = 20 samples here; the claim of Fig. 8 is relative.
"""

from __future__ import annotations

import numpy as np

from predictor_service.convergence.training_speed import Resources, SpeedSample, Synchrony, fit_speed

TABLE_2 = {
    Synchrony.ASYNCHRONOUS: (2.83, 3.92, 0.00, 0.11),
    Synchrony.SYNCHRONOUS: (1.02, 2.78, 4.92, 0.00, 0.02),
}
BATCH = 20
PAIRS = [Resources(workers=w, servers=p, batch=BATCH) for w in range(1, 21) for p in range(1, 21)]


def speed(synchrony: Synchrony, resources: Resources) -> float:
    """Eq. (3) and Eq. (4) as printed."""
    w, p, theta = resources.workers, resources.servers, TABLE_2[synchrony]
    if synchrony is Synchrony.ASYNCHRONOUS:
        return w / (theta[0] + theta[1] * w / p + theta[2] * w + theta[3] * p)
    return 1 / (theta[0] * BATCH / w + theta[1] + theta[2] * w / p + theta[3] * w + theta[4] * p)


def estimation_error(synchrony: Synchrony, samples: int, noise: float, seed: int) -> float:
    """Mean over all 400 pairs of the error of a function fitted to some, measured with noise."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(PAIRS), samples, replace=False)
    measured = [
        SpeedSample(resources=PAIRS[i], steps_per_s=speed(synchrony, PAIRS[i]) * float(np.exp(random.normal(0, noise))))
        for i in chosen
    ]
    model = fit_speed(measured, synchrony)
    return float(np.mean([abs(model.steps_per_s(item) / speed(synchrony, item) - 1) for item in PAIRS]))
