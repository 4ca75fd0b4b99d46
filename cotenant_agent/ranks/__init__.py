"""The processes of a gang: what distinguishes them, where they meet, how long each takes for a step."""
