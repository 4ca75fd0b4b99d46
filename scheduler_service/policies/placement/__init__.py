"""Which GPUs a job takes, and why.

There are two kinds of round. `exclusive_round` starts jobs alone on free GPUs, and asks the rules of a policy which
running jobs make room, found by `preemption`. `sharing_round` is that of policies that share GPUs, each with a
placement of its own, such as `horus_placement`. What all of them share is in `free_gpus`, `starts` and `reasons`.
"""
