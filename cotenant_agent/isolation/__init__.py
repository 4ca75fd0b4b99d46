"""By what jobs are kept from each other and from the agent, and what this node runs at all."""
