"""When jobs may share a GPU, how much they slow each other down, and what is done when it hurts."""
