"""What is to be learned from measured profiles, and the methods that learn it; nothing here is served as it is."""
