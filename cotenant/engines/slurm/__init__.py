"""Slurm: read by squeue and sinfo, told by scontrol."""
