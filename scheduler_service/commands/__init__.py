"""The verbs of `python -m scheduler_service`."""
