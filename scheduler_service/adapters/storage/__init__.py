"""The state on disk: an event log that is stored before it is answered, its checks, copies and identity."""
