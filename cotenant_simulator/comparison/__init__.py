"""Several policies on several seeds of one workload: the runs, their figures, intervals of their differences."""
