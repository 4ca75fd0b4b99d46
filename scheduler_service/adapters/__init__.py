"""Everything with an effect: event log, clients, clock."""
