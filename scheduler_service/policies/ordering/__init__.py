"""Which job comes first.

`shortest_first` sorts the queue by remaining time, with aging; `fair_queues` mixes classes of jobs; `waiting_list`
walks through a queue and folds the holds of jobs that wait for one and the same reason.
"""
