"""Regressors behind one interface; each can be served without the library that trained it."""
