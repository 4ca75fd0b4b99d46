"""Scripts for docs/ray.md: what shares GPUs on a Ray cluster by cotenant's decisions."""
