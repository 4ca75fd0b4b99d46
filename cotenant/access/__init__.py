"""Who calls, and what they may do: roles, the table of calls, certificates and tokens."""
