"""The rules of the Pollux artifact's engine, so that its published completion times come out to the second."""
