"""Whose turn it is: priority classes, tenants, holds, reservations and the order within them."""
