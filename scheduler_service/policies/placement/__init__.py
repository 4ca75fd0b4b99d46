"""Which GPUs a job takes, and why.

`exclusive_round` starts jobs alone on free GPUs, `horus_placement` takes the cheapest GPUs, free or not, and
`preemption` finds running jobs that make room. What all of them share is in `free_gpus` and `reasons`.
"""
