"""The scheduler: facts go in, a pure engine decides, orders come out."""
