"""One run: the engine, and a world that carries out what it orders."""
