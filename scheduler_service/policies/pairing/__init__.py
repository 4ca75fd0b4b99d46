"""Two jobs per GPU, as SJF-FFS and SJF-BSBF share them.

`sjf_sharing` decides where a job may go, by way of `offers` of single GPUs and `gangs` of them; `sharing_queue` passes
over the jobs of a long queue that cannot start. `occupied_gpu` is a GPU with its one job, and `pair_sharing` holds
Theorem 1: whether both ends together come sooner when a job starts at once. `pair_answers` keeps what two jobs answer
each other; `pair_arrays`, `class_answers` and `pair_sums` weigh all GPUs of a large cluster in one expression.
"""
