"""Which GPUs a job takes, and why.

`exclusive_round` starts jobs alone on free GPUs; `sharing_round` is the round of policies that share GPUs, each with a
placement of its own, such as `horus_placement`; `preemption` finds running jobs that make room. What all of them share
is in `free_gpus`, `starts` and `reasons`.
"""
