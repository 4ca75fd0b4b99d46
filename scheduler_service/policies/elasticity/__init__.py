"""How many GPUs a job gets where it may have several numbers of them, and how running jobs get there.

`reshaping` predicts what a number of GPUs does to a job, and `counted_starts` carries numbers out; `count_choice`,
`optimus_allocation`, `optimus_placement` and `task_demand` choose them.
"""
