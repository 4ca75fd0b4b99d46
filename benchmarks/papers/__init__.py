"""Tables and figures of the papers, run again: the figure printed there, ours, their ratio. Not part of run_all."""
