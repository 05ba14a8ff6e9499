"""What a run will need on machines that are not here: the true steps compiled ahead of time, counted and timed."""
