"""The use case of the service: predict one job, predict pairs."""
