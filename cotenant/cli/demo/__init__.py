"""`cotenant demo`: real services, real jobs on two stand-in devices, a crash in the middle, and an honest summary."""
