"""One policy per file; each is a pure function of one view."""
