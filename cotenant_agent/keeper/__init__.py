"""The program that keeps one attempt and outlives the agent; the standard library only."""
