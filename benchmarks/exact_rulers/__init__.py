"""Exact optima of small instances, against which benchmarks and tests measure the policies' heuristics.

`fewest_gpus` solves OJPP's constraints, `least_cost_placement` Horus' cost on the final loads, `best_sharing` pairs and
gangs of SJF-BSBF. Each is exponential in the number of jobs and solved with HiGHS, which scipy brings: no policies.
"""
